"""Converts a checkpoint's Θ to safetensors, for other tools, and back."""

from atoll_runtime.export.layouts import ExportError
from atoll_runtime.export.reader import Export, Theta, compare, read_back
from atoll_runtime.export.writer import Order, write
