"""Evaluates the global model while its run trains. It follows the checkpoints in the bucket, and runs on CPUs."""
