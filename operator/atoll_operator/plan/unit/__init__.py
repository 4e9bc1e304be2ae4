"""Decisions about a LearnerUnit, one policy a file."""
