"""Stores one host's compiled programs in the run's bucket: `cache/<versions>/<shape>/host-<h>/<program>`.

`<versions>` names the packages, `<shape>` all else that is known before JAX starts. Each object begins with its own
checksum. No failure here is an error for the caller: what cannot be read is compiled, what cannot be written is logged.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import google_crc32c
import jax

from atoll_runtime.checkpoint.bucket import Bucket
from atoll_runtime.checkpoint.layout import CACHE
from atoll_runtime.contract import RunContract, UnitContract
from atoll_runtime.payloads import StoreError

FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
"""Environment variables that change the compiler's result."""
SLICE = ("JAX_PLATFORMS", "TPU_ACCELERATOR_TYPE", "TPU_TOPOLOGY", "MEGASCALE_NUM_SLICES")
PACKAGES = ("atoll", "jax", "jaxlib", "libtpu")
FETCH_SECONDS = 20.0
"""Programs that have not arrived this long after the start of the process are compiled."""
BUCKET_SECONDS = 20.0
"""Time-out of one call of the bucket."""
DOWNLOADS = 8
"""Parallel downloads."""
TRIAL = "atoll-compiled-trial"
"""A file in the pod, present from the first load until the first step has ended. If a process finds it at its start, a
loaded program may have killed the process before it."""

log = logging.getLogger(__name__)


def shape_digest(run: RunContract, unit: UnitContract, environment: Mapping[str, str] = os.environ) -> str:
    """Digest of everything in the contracts and the environment that the run's programs depend on."""
    facts = {
        "model": run.model.model_dump_json(),
        "inner": run.inner.model_dump_json(),
        "data": [run.data.sequence_length, run.data.packing],
        "outer": [run.outer.fragments, run.outer.codec, len(run.shards)],
        "unit": [unit.hosts, unit.batch],
        "environment": [environment.get(name, "") for name in (*FLAGS, *SLICE)],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:20]


class CompilationStore:
    """Downloads the host's programs in the background from the start; uploads new ones after the first step.

    Args:
        versions: names the folder in `cache/`; folders of other versions are removed.
        trial: path of the file `TRIAL`.
    """

    def __init__(self, bucket: Bucket, trial: Path, versions: str, shape: str, host: int) -> None:
        self._bucket, self._trial, self._versions, self._host = bucket, trial, versions, host
        self._prefix = f"{CACHE}/{versions}/{shape}/host-{host}"
        self._programs: dict[str, bytes] = {}
        self._fetched, self._settled = threading.Event(), threading.Event()
        self._deadline = time.monotonic() + FETCH_SECONDS
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._suspect = trial.exists()
        if self._suspect:
            log.warning("the last process ended before its first step: compiling all programs again")
        self._thread = threading.Thread(target=self._work, name="compilation-store", daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, run: RunContract, unit: UnitContract) -> CompilationStore | None:
        """The run's store for this host; None where the user has turned caches off or has given JAX one of its own.

        On CPUs JAX cannot serialise a program that it has loaded: functions are missing when it runs (JAX 0.10).

        Raises:
            StoreError: the checkpoint's URI is not of a bucket.
        """
        own = jax.config.values["jax_compilation_cache_dir"]
        if own or not jax.config.values["jax_enable_compilation_cache"]:
            log.info("no programs are kept in the bucket; JAX's own cache: %s", own or "off")
            return None
        bucket = Bucket(run.checkpoint.uri, BUCKET_SECONDS)
        versions = hashlib.sha256("\0".join(packages()).encode()).hexdigest()[:20]
        trial = Path(tempfile.gettempdir()) / f"{TRIAL}-{run.uid}-{unit.unit}-{unit.host}"
        return cls(bucket, trial, versions, shape_digest(run, unit), unit.host)

    def get(self, key: str) -> bytes | None:
        """Returns a program, or None. Waits for downloads until `FETCH_SECONDS` have passed."""
        if self._suspect:
            return None
        if key not in self._programs:
            self._fetched.wait(max(0.0, self._deadline - time.monotonic()))
        content = self._programs.pop(key, None)
        if content is not None and not self._settled.is_set():
            self._quietly(self._trial.touch)
        return content

    def put(self, key: str, make: Callable[[], bytes]) -> None:
        """Uploads what `make` returns, in the background and after the first step."""
        self._jobs.put(lambda: self._bucket.write(f"{self._prefix}/{key}", _sealed(make())))

    def settle(self) -> None:
        """Call after the first step: the loaded programs work, and uploads no longer delay it."""
        self._quietly(lambda: self._trial.unlink(missing_ok=True))
        self._settled.set()

    def close(self, timeout: float) -> None:
        """Waits at most `timeout` seconds for uploads. Before the first step there are none."""
        if self._settled.is_set():
            self._jobs.put(None)
            self._thread.join(timeout)

    def _work(self) -> None:
        self._quietly(self._fetch)
        self._fetched.set()
        self._settled.wait()
        if self._host == 0:
            self._quietly(self._remove_other_versions)
        while (job := self._jobs.get()) is not None:
            self._quietly(job)

    def _fetch(self) -> None:
        names = [path.rpartition("/")[2] for path in self._bucket.list(self._prefix)]
        with ThreadPoolExecutor(DOWNLOADS, "compilation-fetch") as pool:
            for name, content in zip(names, pool.map(self._download, names), strict=True):
                if content is not None:
                    self._programs[name] = content

    def _download(self, name: str) -> bytes | None:
        try:
            return _opened(self._bucket.read(f"{self._prefix}/{name}"), name)
        except StoreError as error:
            log.warning("%s is compiled again: %s", name, error)
            return None

    def _remove_other_versions(self) -> None:
        for versions in {path.split("/")[1] for path in self._bucket.list(CACHE)} - {self._versions}:
            self._bucket.delete_tree(f"{CACHE}/{versions}")

    def _quietly(self, job: Callable[[], object]) -> None:
        """Logs every error: training goes on without a cache."""
        try:
            job()
        except Exception as error:
            log.warning("compilation cache: %s: %s", type(error).__name__, error)


def _sealed(content: bytes) -> bytes:
    checksum: int = google_crc32c.value(content)
    return checksum.to_bytes(4, "big") + content


def _opened(sealed: bytes, name: str) -> bytes | None:
    content = bytes(sealed[4:])
    if len(sealed) < 4 or google_crc32c.value(content) != int.from_bytes(sealed[:4], "big"):
        log.warning("%s: %d bytes: the checksum does not match; it is compiled again", name, len(sealed))
        return None
    return content


def packages() -> list[str]:
    """Versions of the packages that make and run programs; empty for one that is not installed."""
    return [_version(name) for name in PACKAGES]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
