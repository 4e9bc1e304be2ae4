"""Decisions about a TrainingRun, one policy a file."""
