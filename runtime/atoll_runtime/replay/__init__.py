"""Re-runs an event tape: the same machine and the same merge, every decision and every bit compared."""

from atoll_runtime.replay.arrays import Held, differing, tensors
from atoll_runtime.replay.folder import facts_of, records
from atoll_runtime.replay.player import Difference, Replay, replay

__all__ = ["Difference", "Held", "Replay", "differing", "facts_of", "records", "replay", "tensors"]
