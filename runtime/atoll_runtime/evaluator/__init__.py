"""Evaluates the global model while its run trains: follows the checkpoints in the bucket, on CPUs."""
