"""`atoll data import`: text files into a data set."""

from atoll_runtime.data.importer.run import HELD_OUT, SHARD_BYTES, Order, Standing, run_import
