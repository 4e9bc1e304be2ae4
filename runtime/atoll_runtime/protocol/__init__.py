"""The protocol as pure rules and one state machine: no I/O, no clock, no threads, no JAX."""
