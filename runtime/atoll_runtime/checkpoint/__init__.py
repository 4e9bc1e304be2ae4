"""The bucket, the layout of a run's checkpoints in it, and complete global cuts."""

from atoll_runtime.checkpoint.bucket import Bucket, Damaged
from atoll_runtime.checkpoint.store import GlobalStore
from atoll_runtime.payloads import Cut, Part, Region, Regions, Skipped, Slice, StoreError
