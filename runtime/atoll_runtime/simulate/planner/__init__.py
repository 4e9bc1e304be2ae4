"""Estimates what to expect of a run before its chips are rented, and which values of its knobs would be better."""
