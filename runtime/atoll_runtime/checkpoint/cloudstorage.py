"""Objects in a folder of a bucket of Google Cloud Storage."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import google.auth
from google.api_core.exceptions import NotFound, RequestRangeNotSatisfiable
from google.auth.exceptions import DefaultCredentialsError
from google.cloud.storage import Blob, Client
from google.cloud.storage.retry import DEFAULT_RETRY
from requests.adapters import HTTPAdapter

from atoll_runtime.checkpoint.deadline import in_time

SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
CONNECTIONS = 32
"""Connections that are kept open. More calls at the same time open and close their own."""
DELETIONS = 8
"""Objects of a folder that are deleted at the same time."""
RETRY = DEFAULT_RETRY.with_delay(initial=0.25, maximum=8.0)
RETRYING = 0.8
"""The part of a call's time in which the client tries again. Then its error is told, not that there was no answer."""
T = TypeVar("T")

_log = logging.getLogger(__name__)


# Otherwise the client asks for the bucket's metadata in the background, for traces that nobody collects.
os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")


class CloudStorage:
    """As `bucket.Folder`. `seconds` bound one call; errors are the library's."""

    def __init__(self, place: str) -> None:
        """`place`: the bucket's name, and a folder after a slash."""
        name, _, folder = place.partition("/")
        self._client = _client(os.environ.get("STORAGE_EMULATOR_HOST"))
        self._bucket = self._client.bucket(name)
        self._folder = f"{folder}/" if folder else ""

    def list(self, folder: str, seconds: float) -> list[str]:
        prefix = f"{self._folder}{folder}/" if folder else self._folder
        fields = "items(name),nextPageToken"

        def names(**options: Any) -> list[str]:
            found = self._client.list_blobs(self._bucket, prefix=prefix, fields=fields, **options)
            # The console makes an object with this end for an empty folder.
            return [blob.name[len(self._folder) :] for blob in found if not blob.name.endswith("/")]

        return _call(seconds, names)

    def read(self, path: str, start: int, stop: int | None, seconds: float) -> bytes:
        if stop is not None and stop <= start:
            return b""
        whole = start == 0 and stop is None

        def content(**options: Any) -> bytes:
            data: bytes = self._blob(path).download_as_bytes(
                start=None if whole else start,
                end=None if stop is None else stop - 1,
                raw_download=True,
                checksum="auto" if whole else None,
                **options,
            )
            return data

        try:
            return _call(seconds, content)
        except NotFound as error:
            raise FileNotFoundError(path) from error
        except RequestRangeNotSatisfiable:  # the object ends before `start`
            return b""

    def write(self, path: str, data: bytes, seconds: float) -> None:
        content_type = "application/octet-stream"
        blob = self._blob(path)
        _call(seconds, lambda **options: blob.upload_from_string(data, content_type=content_type, **options))

    def delete(self, path: str, seconds: float) -> None:
        try:
            _call(seconds, self._blob(path).delete)
        except NotFound:
            return

    def delete_tree(self, folder: str, seconds: float) -> None:
        with ThreadPoolExecutor(DELETIONS, "delete") as pool:
            list(pool.map(lambda path: self.delete(path, seconds), self.list(folder, seconds)))

    def _blob(self, path: str) -> Blob:
        return self._bucket.blob(self._folder + path)


def _call(seconds: float, call: Callable[..., T]) -> T:
    """Makes a call of the client with bounds for each wait and for all its attempts."""
    retry = RETRY.with_timeout(RETRYING * seconds)
    return in_time(seconds, lambda: call(timeout=seconds, retry=retry), "bucket")


@cache
def _client(emulator: str | None) -> Client:
    """The process's client. Without credentials of Google's it asks without any, as for public buckets."""
    if emulator:
        client = Client()
    else:
        try:
            credentials, project = google.auth.default(scopes=[SCOPE])
            client = Client(project or "<none>", credentials)
        except DefaultCredentialsError as error:
            _log.warning("asking without credentials: %s", " ".join(str(error).split()))
            client = Client.create_anonymous_client()
    client._http.mount("https://", HTTPAdapter(pool_connections=2, pool_maxsize=CONNECTIONS))
    client._http.mount("http://", HTTPAdapter(pool_connections=2, pool_maxsize=CONNECTIONS))
    return client
