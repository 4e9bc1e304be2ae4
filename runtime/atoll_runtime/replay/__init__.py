"""Re-runs an event tape with the same machine and the same merge, and compares every decision and every bit."""

from atoll_runtime.replay.player import Difference, Replay, replay
from atoll_runtime.replay.reader import records
from atoll_runtime.replay.tensors import differing, tensors

__all__ = ["Difference", "Replay", "differing", "records", "replay", "tensors"]
