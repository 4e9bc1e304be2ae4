"""What to expect of a run before its chips are rented, and which of its knobs would do better."""
