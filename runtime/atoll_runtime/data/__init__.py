"""Index-addressed token data. Example i can be read without reading earlier ones."""

from atoll_runtime.data.catalogue import Catalogue, DataError, Shard, open_catalogue
from atoll_runtime.data.prefetch import Prefetch
from atoll_runtime.data.reader import Reader
from atoll_runtime.data.stream import Stream
from atoll_runtime.data.writer import write_stdlib, write_text
