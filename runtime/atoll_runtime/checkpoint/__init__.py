"""The bucket, the layout of a run's checkpoints in it, and complete global cuts."""

from atoll_runtime.checkpoint.bucket import Bucket, StoreError
from atoll_runtime.checkpoint.store import Cut, GlobalStore, Part, Skipped, Slice

__all__ = ["Bucket", "Cut", "GlobalStore", "Part", "Skipped", "Slice", "StoreError"]
