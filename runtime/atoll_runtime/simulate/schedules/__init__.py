"""Drives the very state machines of `sync/` in simulated time, with faults, and checks them from outside."""
