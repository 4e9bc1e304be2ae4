"""Reads the status of syncers and evaluators."""
