"""`atoll data import`: text of many kinds into a data set."""

from atoll_runtime.data.importer.order import HELD_OUT, SHARD_BYTES, Order
from atoll_runtime.data.importer.run import Standing, run_import

__all__ = ["HELD_OUT", "SHARD_BYTES", "Order", "Standing", "run_import"]
