"""A folder of objects at a URI: `gs://bucket/prefix` or `file:///path`. Every call has a time-out."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import fsspec
from fsspec.asyn import sync
from fsspec.exceptions import FSTimeoutError

TIMEOUT = 60.0
"""Seconds for one call, the client's own retries included."""


class StoreError(Exception):
    """A bucket or an object that cannot be used; the message names the URI."""


class MissingObject(StoreError):
    """The object is not there."""


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
        """Every object below `prefix`, sorted, relative to the bucket's URI; empty where there is none."""
        try:
            found = self._call("find", prefix)
        except MissingObject:
            return []
        root = PurePosixPath(self._root)
        return sorted(str(PurePosixPath(name).relative_to(root)) for name in found)

    def read(self, path: str, start: int | None = None, stop: int | None = None) -> bytes:
        """Bytes [start, stop) of an object.

        Raises:
            MissingObject: there is no such object.
            StoreError: the bucket did not answer or refused.
        """
        return bytes(self._call("cat_file", path, start=start, end=stop))

    def write(self, path: str, data: bytes) -> None:
        """Writes an object whole, over an older one."""
        self._call("pipe_file", path, data)

    def delete(self, path: str) -> None:
        """Removes one object; one that is gone already is no error."""
        try:
            self._call("rm_file", path)
        except MissingObject:
            return

    def delete_tree(self, prefix: str) -> None:
        """Removes everything below `prefix`."""
        try:
            self._call("rm", prefix, recursive=True)
        except MissingObject:
            return

    def _call(self, name: str, path: str, *args: Any, **options: Any) -> Any:
        where = f"{self._root}/{path}" if path else self._root
        try:
            if self._files.async_impl:
                coroutine = getattr(self._files, f"_{name}")
                return sync(self._files.loop, coroutine, where, *args, timeout=self._timeout, **options)
            return getattr(self._files, name)(where, *args, **options)
        except FileNotFoundError as error:
            raise MissingObject(f"{self.address(path)}: not found") from error
        except (TimeoutError, FSTimeoutError) as error:
            raise StoreError(f"{self.address(path)}: no answer within {self._timeout:g} s") from error
        except Exception as error:
            # gcsfs, google-auth and aiohttp share no base class; each error means an unusable bucket.
            raise StoreError(f"{self.address(path)}: {_words(error)}") from error


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
