"""One safetensors file: eight bytes of length, a JSON header, the tensors' bytes end to end.

The library writes a file out of memory alone; here the bytes are streamed, so that no file need fit there. The library
reads it, and checks the header of every file that was written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from atoll_runtime.export.entries import Entry
from atoll_runtime.export.errors import ExportError

DTYPES: dict[str, tuple[str, np.dtype[Any]]] = {
    "float32": ("F32", np.dtype("<f4")),
    "bf16": ("BF16", np.dtype(ml_dtypes.bfloat16)),
}
"""By their names here: what safetensors calls them, and numpy. Rounding to bf16 is to nearest, ties to even."""
CHUNK = 4 << 20
"""Elements that are converted and written, or compared, at once."""


def pieces(value: np.ndarray, dtype: str) -> Iterator[np.ndarray]:
    """A tensor in the order of the file, flat, converted a piece at a time."""
    flat = np.ascontiguousarray(value).reshape(-1)
    for start in range(0, flat.size, CHUNK):
        yield flat[start : start + CHUNK].astype(DTYPES[dtype][1], copy=False)


def write_file(
    path: Path,
    entries: Sequence[Entry],
    metadata: Mapping[str, str],
    dtype: str,
    tensor: Callable[[str], np.ndarray],
) -> None:
    """Writes one file and waits until it is on the disk; `tensor` gives one of Θ's by flat name.

    Raises:
        OSError: it cannot be written.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    name, kind = DTYPES[dtype]
    end = 0
    for entry in entries:
        start, end = end, end + entry.size * kind.itemsize
        header[entry.name] = {"dtype": name, "shape": entry.shape, "data_offsets": (start, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of eight
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for entry in entries:
            _append(file, entry.value(tensor), dtype)
        file.flush()
        os.fsync(file.fileno())
    open_file(path)


def _append(file: IO[bytes], value: np.ndarray, dtype: str) -> None:
    """A call of its own, so that nothing holds a tensor while the next one is read."""
    for piece in pieces(value, dtype):
        file.write(piece.view(np.uint8).data)


def open_file(path: Path) -> safe_open:
    """A file to read tensors from, one at a time; raises `ExportError`: missing, cut short, no such file."""
    try:
        return safe_open(path, "np")
    except (OSError, SafetensorError) as error:
        raise ExportError(f"{path}: not a whole safetensors file: {error}") from error
