"""A folder of objects at a URI: `gs://bucket/prefix` or `file:///path`. Every call to Cloud Storage has a time-out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from atoll_runtime import files
from atoll_runtime.payloads import StoreError

if TYPE_CHECKING:
    from atoll_runtime.checkpoint.cloudstorage import CloudStorage

TIMEOUT = 60.0
"""Seconds for one call of a few bytes, including the client's own retries."""
SLOWEST = 16 << 20
"""Bytes a second. A bucket that moves a large object more slowly counts as not answering."""


class Damaged(StoreError):
    """The content is not what was written. A retry does not help, while it may after another `StoreError`."""


class MissingObject(Damaged):
    """The object does not exist."""


def patience(size: int, timeout: float = TIMEOUT) -> float:
    """Seconds for a call that moves `size` bytes."""
    return timeout + size / SLOWEST


class Bucket:
    """Objects below one URI, by relative path. Safe to use from several threads."""

    def __init__(self, uri: str, timeout: float = TIMEOUT) -> None:
        scheme, _, place = uri.rstrip("/").partition("://")
        if scheme not in ("gs", "file") or not place:
            raise StoreError(f"{uri!r}: a URI must start with gs:// or file://")
        self.uri = uri.rstrip("/")
        self._timeout = timeout
        with self._named(""):
            self._objects: Folder | CloudStorage = (
                Folder(Path(place)) if scheme == "file" else _cloud_storage(place)
            )

    def address(self, path: str) -> str:
        """The full URI of `path`."""
        return f"{self.uri}/{path}" if path else self.uri

    def list(self, folder: str = "") -> list[str]:
        """Every object below `folder`, sorted, relative to the bucket's URI; empty if there is none."""
        with self._named(folder):
            return sorted(self._objects.list(folder, self._timeout))

    def read(self, path: str, start: int | None = None, stop: int | None = None) -> bytes:
        """Bytes [start, stop) of an object, fewer if it ends before. Give `stop` for a large one, so that the call has
        more time.

        Raises:
            MissingObject: there is no such object.
            StoreError: the bucket did not answer or refused.
        """
        first = start or 0
        with self._named(path):
            seconds = patience(0 if stop is None else stop - first, self._timeout)
            data = self._objects.read(path, first, stop, seconds)
        if stop is not None and len(data) > stop - first:  # HTTP allows a proxy to ignore the range
            wanted = f"{len(data)} bytes for the range from {first} to {stop}"
            raise StoreError(f"{self.address(path)}: {wanted}")
        return data

    def write(self, path: str, data: bytes) -> None:
        """Writes an object, replacing an older one: whole, or not at all."""
        with self._named(path):
            self._objects.write(path, data, patience(len(data), self._timeout))

    def delete(self, path: str) -> None:
        """Removes one object, if it exists."""
        with self._named(path):
            self._objects.delete(path, self._timeout)

    def delete_tree(self, folder: str) -> None:
        """Removes everything below `folder`."""
        with self._named(folder):
            self._objects.delete_tree(folder, self._timeout)

    @contextmanager
    def _named(self, path: str) -> Iterator[None]:
        """Turns errors of a call into `StoreError`."""
        try:
            yield
        except FileNotFoundError as error:
            raise MissingObject(f"{self.address(path)}: not found") from error
        except TimeoutError as error:
            raise StoreError(f"{self.address(path)}: {error}") from error
        except Exception as error:
            # The client of Cloud Storage, google-auth and requests share no base class; each error means an unusable
            # bucket.
            raise StoreError(f"{self.address(path)}: {_words(error)}") from error


class Folder:
    """Objects in a folder of this machine, by relative path. Its calls have no time-out."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def list(self, folder: str, seconds: float) -> list[str]:
        """Objects below a folder, in any order; empty if there is none."""
        return [
            os.path.relpath(Path(where, name), self._root)
            for where, _, names in os.walk(self._root / folder, onerror=_unless_gone)
            for name in names
            if not name.endswith(files.PARTIAL)
        ]

    def read(self, path: str, start: int, stop: int | None, seconds: float) -> bytes:
        """Bytes [start, stop), fewer if the object ends before. Raises `FileNotFoundError`."""
        with (self._root / path).open("rb") as file:
            file.seek(start)
            return file.read(-1 if stop is None else max(stop - start, 0))

    def write(self, path: str, data: bytes, seconds: float) -> None:
        where = self._root / path
        files.make(where.parent)
        files.replace(where, data)

    def delete(self, path: str, seconds: float) -> None:
        (self._root / path).unlink(missing_ok=True)

    def delete_tree(self, folder: str, seconds: float) -> None:
        shutil.rmtree(self._root / folder, onerror=lambda call, path, info: _unless_gone(info[1]))


def _cloud_storage(place: str) -> CloudStorage:
    from atoll_runtime.checkpoint.cloudstorage import CloudStorage  # imports what a folder does not need

    return CloudStorage(place)


def _unless_gone(error: BaseException) -> None:
    """Another process may remove a folder while this one walks through it."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
