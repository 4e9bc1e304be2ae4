"""Where one host's compiled programs lie: a folder of the pod, which outlives its containers, and the run's bucket.

`cache/<shape>/host-<h>/<program>`, `<shape>` being a digest of all that is known before JAX is up. Each object holds
its own checksum. Nothing here is an error to anybody: what cannot be had is compiled, what cannot be kept is told of.
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
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import google_crc32c

from atoll_runtime.checkpoint.bucket import Bucket, StoreError
from atoll_runtime.checkpoint.layout import CACHE
from atoll_runtime.contract import RunContract, UnitContract

FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
"""Variables by which the compiler's result may differ."""
SLICE = ("JAX_PLATFORMS", "TPU_ACCELERATOR_TYPE", "TPU_TOPOLOGY", "MEGASCALE_NUM_SLICES")
PACKAGES = ("atoll", "jax", "jaxlib", "libtpu")
FETCH_SECONDS = 20.0
"""From the start of the process, after which programs that have not come are compiled."""
BUCKET_SECONDS = 20.0
"""For one call of the bucket."""
DOWNLOADS = 8
"""At once."""
LONGEST_QUEUE = 256
"""Programs that wait to be written: most are, before the first step."""
MOST_PROGRAMS = 256
"""Of one host and shape in the bucket; above it those that this process did not use go."""
MOST_BYTES = 2**31
"""Of one program, and of all of the pod's folder. A node's disk is shared."""
SHAPES = 8
"""In the bucket; above it the one that was not used for the longest time goes."""
TRIAL = "trial"
"""A file that stands from the first load to the first step that ended. A process that finds one has a predecessor
that programs from here may have killed."""

log = logging.getLogger(__name__)


def shape_digest(run: RunContract, unit: UnitContract, environment: Mapping[str, str] = os.environ) -> str:
    """Of the run's programs on this kind of slice."""
    facts = {
        "model": run.model.model_dump_json(),
        "inner": run.inner.model_dump_json(),
        "data": [run.data.sequence_length, run.data.packing],
        "outer": [run.outer.fragments, run.outer.codec, len(run.shards)],
        "unit": [unit.hosts, unit.batch],
        "environment": [environment.get(name, "") for name in (*FLAGS, *SLICE)],
        "packages": packages(),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:20]


class CompilationStore:
    """Fetches in the background from the start, and writes there what is new.

    Args:
        folder: of the pod; of this host alone.
        clock: Unix seconds, by which shapes in the bucket age.
    """

    def __init__(
        self, bucket: Bucket, folder: Path, shape: str, host: int, clock: Callable[[], float] = time.time
    ) -> None:
        self._bucket, self._folder, self._shape, self._clock = bucket, folder, shape, clock
        self._host = host
        self._prefix = f"{CACHE}/{shape}/host-{host}"
        self._fetched, self._settled = threading.Event(), threading.Event()
        self._deadline = time.monotonic() + FETCH_SECONDS
        self._used: set[str] = set()
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(LONGEST_QUEUE)
        self._suspect = (folder / TRIAL).exists()
        if self._suspect:
            log.warning("the process before ended before its first step did: programs are compiled again")
        self._thread = threading.Thread(target=self._work, name="compilation-store", daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, run: RunContract, unit: UnitContract) -> CompilationStore:
        """The run's, for this host.

        Raises:
            StoreError: its URI is of no bucket.
        """
        shape = shape_digest(run, unit)
        folder = Path(tempfile.gettempdir()) / "atoll-compiled" / shape / f"host-{unit.host}"
        return cls(Bucket(run.checkpoint.uri, BUCKET_SECONDS), folder, shape, unit.host)

    def get(self, key: str) -> bytes | None:
        """A program, from the folder; waits for the bucket until `FETCH_SECONDS` are over."""
        self._used.add(key)
        if self._suspect:
            return None
        content = self._read(key)
        if content is None and not self._fetched.is_set():
            self._fetched.wait(max(0.0, self._deadline - time.monotonic()))
            content = self._read(key)
        if content is not None and not self._settled.is_set():
            self._quietly(lambda: (self._folder / TRIAL).touch())
        return content

    def put(self, key: str, make: Callable[[], bytes]) -> None:
        """Keeps what `make` gives, in the folder and in the bucket: in a thread of its own, once a step has ended."""
        try:
            self._jobs.put_nowait(lambda: self._keep(key, make))
        except queue.Full:
            log.warning("%s is not kept: %d programs wait already", key, LONGEST_QUEUE)

    def settle(self) -> None:
        """The first step has ended: the programs do work, and to write them takes no time from it."""
        self._quietly(lambda: (self._folder / TRIAL).unlink(missing_ok=True))
        self._settled.set()

    def close(self, timeout: float) -> None:
        """Waits at most `timeout` seconds for what is to be written; before the first step nothing is."""
        if not self._settled.is_set():
            return
        deadline = time.monotonic() + timeout
        try:
            self._jobs.put(None, timeout=timeout)
        except queue.Full:
            return
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        self._quietly(self._fetch)
        self._fetched.set()
        self._settled.wait()
        self._quietly(self._tidy)
        while (job := self._jobs.get()) is not None:
            self._quietly(job)

    def _fetch(self) -> None:
        """Everything of this host that the folder lacks."""
        self._folder.mkdir(parents=True, exist_ok=True)
        lacking = [name for name in self._names() if self._read(name) is None]
        with ThreadPoolExecutor(DOWNLOADS, "compilation-fetch") as pool:
            for name, content in zip(lacking, pool.map(self._download, lacking), strict=True):
                if content is not None:
                    self._write(name, content)
        if self._host == 0:
            self._bucket.write(f"{CACHE}/{self._shape}/used", str(int(self._clock())).encode())

    def _download(self, name: str) -> bytes | None:
        try:
            return _opened(self._bucket.read(f"{self._prefix}/{name}"), name)
        except StoreError as error:
            log.warning("%s is compiled again: %s", name, error)
            return None

    def _keep(self, key: str, make: Callable[[], bytes]) -> None:
        content = make()
        if self._write(key, content):
            self._bucket.write(f"{self._prefix}/{key}", _sealed(content))

    def _tidy(self) -> None:
        names = self._names()
        if len(names) > MOST_PROGRAMS:
            for name in names:
                if name not in self._used:
                    self._bucket.delete(f"{self._prefix}/{name}")
        if self._host == 0:
            for shape in self._oldest():
                self._bucket.delete_tree(f"{CACHE}/{shape}")

    def _oldest(self) -> Iterator[str]:
        """Shapes beyond `SHAPES`."""
        others = {path.split("/")[1] for path in self._bucket.list(CACHE)} - {self._shape}
        ages = sorted((self._last_use(shape), shape) for shape in others)
        yield from (shape for _, shape in ages[: max(0, len(others) - SHAPES + 1)])

    def _last_use(self, shape: str) -> int:
        try:
            text = self._bucket.read(f"{CACHE}/{shape}/used")
        except StoreError:
            return 0
        return int(text) if text.isdigit() else 0

    def _names(self) -> list[str]:
        return [path.rpartition("/")[2] for path in self._bucket.list(self._prefix)]

    def _read(self, key: str) -> bytes | None:
        try:
            return _opened((self._folder / key).read_bytes(), key)
        except OSError:
            return None

    def _write(self, key: str, content: bytes) -> bool:
        """Whole or not at all; false where there is no room."""
        held = sum(path.stat().st_size for path in self._folder.iterdir())
        if held + len(content) > MOST_BYTES:
            log.warning("%s is not kept: %d bytes, and the folder holds %d", key, len(content), held)
            return False
        part = self._folder / f".{key}"
        part.write_bytes(_sealed(content))
        part.rename(self._folder / key)
        return True

    def _quietly(self, job: Callable[[], object]) -> None:
        """Training goes on without a cache, whatever its bucket, its disk or the compiler says."""
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
    """Versions of what makes and runs programs; empty where one is not installed."""
    return [_version(name) for name in PACKAGES]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
