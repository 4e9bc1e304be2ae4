"""Index-addressed token data: example i is read without what stands before it."""

from atoll_runtime.data.catalogue import Catalogue, DataError, Shard, open_catalogue
from atoll_runtime.data.prefetch import Prefetch
from atoll_runtime.data.reader import Reader
from atoll_runtime.data.stream import Stream
from atoll_runtime.data.writer import write_stdlib, write_text
