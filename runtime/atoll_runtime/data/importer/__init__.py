"""`atoll data import`: text files into a data set."""

from atoll_runtime.data.importer.run import Order, Standing, run_import
