"""Observe, plan, act, write the status."""
