"""The bucket, the layout of a run's checkpoints in it, and complete global cuts."""

from atoll_runtime.checkpoint.bucket import Bucket, Damaged, StoreError
from atoll_runtime.checkpoint.cut import Cut, Skipped
from atoll_runtime.checkpoint.parts import Part, Region, Regions, Slice
from atoll_runtime.checkpoint.store import GlobalStore

__all__ = [
    "Bucket",
    "Cut",
    "Damaged",
    "GlobalStore",
    "Part",
    "Region",
    "Regions",
    "Skipped",
    "Slice",
    "StoreError",
]
