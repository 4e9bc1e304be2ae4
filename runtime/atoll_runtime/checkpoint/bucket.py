"""A folder of objects at a URI: `gs://bucket/prefix` or `file:///path`. Every call to a bucket has a time-out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec
from fsspec.asyn import sync
from fsspec.exceptions import FSTimeoutError

from atoll_runtime import files
from atoll_runtime.payloads import StoreError

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
        if not uri.startswith(("gs://", "file://")):
            raise StoreError(f"{uri!r}: a URI must start with gs:// or file://")
        self.uri = uri.rstrip("/")
        self._timeout = timeout
        options: dict[str, Any] = (
            {"use_listings_cache": False} if uri.startswith("gs://") else {"auto_mkdir": True}
        )
        self._files, self._root = fsspec.core.url_to_fs(self.uri, **options)

    def address(self, path: str) -> str:
        """The full URI of `path`."""
        return f"{self.uri}/{path}" if path else self.uri

    def list(self, prefix: str = "") -> list[str]:
        """Every object below `prefix`, sorted, relative to the bucket's URI; empty if there is none."""
        try:
            found = self._call("find", prefix)
        except MissingObject:
            return []
        root = PurePosixPath(self._root)
        return sorted(
            str(PurePosixPath(name).relative_to(root)) for name in found if not name.endswith(files.PARTIAL)
        )

    def read(self, path: str, start: int | None = None, stop: int | None = None) -> bytes:
        """Bytes [start, stop) of an object, fewer if it ends before. Give `stop` for a large one, so that the call has
        more time.

        Raises:
            MissingObject: there is no such object.
            StoreError: the bucket did not answer or refused.
        """
        size = 0 if stop is None else stop - (start or 0)
        try:
            return bytes(self._call("cat_file", path, size=size, start=start, end=stop))
        except StoreError as error:
            if getattr(error.__cause__, "code", None) == 416:  # the object ends before `start`
                return b""
            raise

    def write(self, path: str, data: bytes) -> None:
        """Writes an object, replacing an older one: whole, or not at all."""
        if self._files.async_impl:
            self._call("pipe_file", path, data, size=len(data))
            return
        with self._named(path, self._timeout):
            where = Path(self._where(path))
            files.make(where.parent)
            files.replace(where, data)

    def delete(self, path: str) -> None:
        """Removes one object, if it exists."""
        try:
            self._call("rm_file", path)
        except MissingObject:
            return

    def tidy(self, prefix: str) -> None:
        """Removes partial files, which `list` does not show, that killed writers left directly in `prefix`. No other
        writer may be active there."""
        if not self._files.async_impl:
            with self._named(prefix, self._timeout):
                files.tidy(Path(self._where(prefix)))

    def delete_tree(self, prefix: str) -> None:
        """Removes everything below `prefix`."""
        try:
            self._call("rm", prefix, recursive=True)
        except MissingObject:
            return

    def _call(self, name: str, path: str, *args: Any, size: int = 0, **options: Any) -> Any:
        """Calls the file system. `size`: bytes that the call moves."""
        timeout = patience(size, self._timeout)
        with self._named(path, timeout):
            if self._files.async_impl:
                coroutine = getattr(self._files, f"_{name}")
                where = self._where(path)
                return sync(self._files.loop, coroutine, where, *args, timeout=timeout, **options)
            return getattr(self._files, name)(self._where(path), *args, **options)

    def _where(self, path: str) -> str:
        return f"{self._root}/{path}" if path else str(self._root)

    @contextmanager
    def _named(self, path: str, timeout: float) -> Iterator[None]:
        """Turns errors of a call into `StoreError`."""
        try:
            yield
        except FileNotFoundError as error:
            raise MissingObject(f"{self.address(path)}: not found") from error
        except (TimeoutError, FSTimeoutError) as error:
            raise StoreError(f"{self.address(path)}: no answer within {round(timeout, 1):g} s") from error
        except Exception as error:
            # gcsfs, google-auth and aiohttp share no base class; each error means an unusable bucket.
            raise StoreError(f"{self.address(path)}: {_words(error)}") from error


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
