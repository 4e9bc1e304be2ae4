"""A checkpoint's Θ as safetensors, for other tools, and back."""

from atoll_runtime.export.errors import ExportError
from atoll_runtime.export.reader import Comparison, Export, compare, read_back
from atoll_runtime.export.theta import Theta
from atoll_runtime.export.vocabulary import Vocabulary, read_vocabulary
from atoll_runtime.export.writer import Order, Written, write

__all__ = [
    "Comparison",
    "Export",
    "ExportError",
    "Order",
    "Theta",
    "Vocabulary",
    "Written",
    "compare",
    "read_back",
    "read_vocabulary",
    "write",
]
