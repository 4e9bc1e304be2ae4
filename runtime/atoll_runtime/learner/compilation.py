"""Compiles a unit's programs once; later incarnations load them from the run's bucket.

A host's programs are in `cache/<versions>/<shape>/host-<h>/`. `<versions>` names the packages, `<shape>` everything
else that is known before JAX starts. Programs are stored with gzip, for its checksum. No failure of the bucket is an
error for the caller: a program that cannot be read is compiled, and a failed upload is logged.

JAX's own cache does not serve a unit of several hosts on CPUs (docs/decisions/checkpoints.md): host 0 loads what the
others compile, and fails when it waits for them. Here the hosts decide together for each program: all load it or all
compile it.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import logging
import os
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import serialize_executable
from jax.stages import Compiled, Lowered

from atoll_runtime.checkpoint.bucket import Bucket
from atoll_runtime.checkpoint.layout import CACHE
from atoll_runtime.contract import RunContract, UnitContract
from atoll_runtime.learner.host_consensus import Agreement
from atoll_runtime.payloads import StoreError

ENVIRONMENT = (
    *("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_PLATFORMS"),
    *("TPU_ACCELERATOR_TYPE", "TPU_TOPOLOGY", "MEGASCALE_NUM_SLICES"),
)
"""Variables that change the compiler's result."""
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
USED = "used"
"""A file in `cache/<versions>/` with the Unix time at which a unit last ended a first step with these versions."""
UNUSED_SECONDS = 86400.0
"""A folder that was not used for as long is removed. Until then units may still run several images."""

Wrap = Callable[[str, Any], Callable[..., Any]]
"""Takes a name and a function of `jax.jit`; returns the function to call instead. Keyword arguments must be static."""

log = logging.getLogger(__name__)


def shape_digest(run: RunContract, unit: UnitContract, environment: Mapping[str, str] = os.environ) -> str:
    """Digest of everything in the contracts and the environment that the run's programs depend on."""
    parts = [run.model, run.inner, run.data, run.outer, len(run.shards), unit.hosts, unit.batch]
    return _digest([repr(part) for part in parts] + [environment.get(name, "") for name in ENVIRONMENT])


class CompilationStore:
    """Downloads the host's programs in the background from the start; uploads new ones after the first step.

    Args:
        versions: names the folder in `cache/`; folders of other versions are removed once they are unused.
        trial: path of the file `TRIAL`.
    """

    def __init__(self, bucket: Bucket, trial: Path, versions: str, shape: str, host: int) -> None:
        self._bucket, self._trial, self._versions, self._host = bucket, trial, versions, host
        self._prefix = f"{CACHE}/{versions}/{shape}/host-{host}"
        self._deadline = time.monotonic() + FETCH_SECONDS
        self._pool = ThreadPoolExecutor(1, "compilation-store")
        self._programs: dict[str, bytes] = {}
        self._jobs: list[Future[None]] = []
        self._settled = threading.Event()
        """Set when the first step has ended; uploads wait for it."""
        self._suspect = trial.exists()
        if self._suspect:
            log.warning("the last process ended before its first step: compiling all programs again")
        self._fetched = self._pool.submit(self._quietly, self._fetch)

    @classmethod
    def of(cls, run: RunContract, unit: UnitContract) -> CompilationStore | None:
        """The run's store for this host; None if the user has turned caches off or has given JAX one of its own.

        On CPUs JAX cannot serialise a program that it has loaded: functions are missing when it runs (JAX 0.10).

        Raises:
            StoreError: the checkpoint's URI does not name a bucket.
        """
        own = jax.config.values["jax_compilation_cache_dir"]
        if own or not jax.config.values["jax_enable_compilation_cache"]:
            log.info("no programs are kept in the bucket; JAX's own cache: %s", own or "off")
            return None
        bucket = Bucket(run.checkpoint.uri, BUCKET_SECONDS)
        trial = Path(tempfile.gettempdir()) / f"{TRIAL}-{run.uid}-{unit.unit}-{unit.host}"
        return cls(bucket, trial, _digest(map(_version, PACKAGES)), shape_digest(run, unit), unit.host)

    def get(self, key: str) -> bytes | None:
        """Returns a program, or None. Waits for downloads until `FETCH_SECONDS` have passed."""
        if self._suspect:
            return None
        wait([self._fetched], max(0.0, self._deadline - time.monotonic()))
        content = self._programs.get(key)  # stays for functions whose text is the same
        if content is not None and not self._settled.is_set():
            self._quietly(self._trial.touch)
        return content

    def put(self, key: str, make: Callable[[], bytes]) -> None:
        """Uploads what `make` returns, in the background and after the first step."""

        def upload() -> None:
            self._settled.wait()
            self._bucket.write(f"{self._prefix}/{key}", gzip.compress(make(), 1))

        self._jobs.append(self._pool.submit(self._quietly, upload))

    def settle(self) -> None:
        """Call after the first step: the loaded programs work, and uploads no longer delay it."""
        self._quietly(lambda: self._trial.unlink(missing_ok=True))
        if self._host == 0:
            self._jobs.append(self._pool.submit(self._quietly, self._remove_unused_versions))
        self._settled.set()

    def close(self, timeout: float) -> None:
        """Waits at most `timeout` seconds for uploads. Before the first step there are none."""
        wait(self._jobs, timeout if self._settled.is_set() else 0.0)

    def _fetch(self) -> None:
        names = [path.rpartition("/")[2] for path in self._bucket.list(self._prefix)]
        with ThreadPoolExecutor(DOWNLOADS, "compilation-fetch") as pool:
            for name, content in zip(names, pool.map(self._download, names), strict=True):
                if content is not None:
                    self._programs[name] = content

    def _download(self, name: str) -> bytes | None:
        try:
            return gzip.decompress(self._bucket.read(f"{self._prefix}/{name}"))
        except (StoreError, OSError, EOFError, zlib.error) as error:
            log.warning("%s is compiled again: %s", name, error)
            return None

    def _remove_unused_versions(self) -> None:
        now, paths, mine = time.time(), self._bucket.list(CACHE), f"{CACHE}/{self._versions}"
        for folder in {mine, *(f"{CACHE}/{path.split('/')[1]}" for path in paths)}:
            used = f"{folder}/{USED}"
            if folder == mine or used not in paths:  # another image may be uploading its first programs
                self._bucket.write(used, str(now).encode())
            elif now - float(self._bucket.read(used)) > UNUSED_SECONDS:
                self._bucket.delete_tree(folder)

    def _quietly(self, job: Callable[[], object]) -> None:
        """Logs every error: training goes on without a cache."""
        try:
            job()
        except Exception as error:
            log.warning("compilation cache: %s: %s", type(error).__name__, error)


def uncached(name: str, jitted: Any) -> Any:
    """Lets JAX compile the function at its first call."""
    return jitted


class Programs:
    """Wraps the functions of one incarnation, which all hosts must call in the same order. Without a store it compiles
    every program."""

    def __init__(self, agreement: Agreement, store: CompilationStore | None) -> None:
        self._agreement, self._store = agreement, store
        self.loaded = 0
        self.compiled = 0
        self.seconds = 0.0
        """Total time between the first call of each program and its start."""

    def __call__(self, name: str, jitted: Any) -> Callable[..., Any]:
        """See `Wrap`. Makes one program for each signature that the function is called with."""
        variants: dict[Any, Compiled] = {}

        def call(*arguments: Any, **static: Any) -> Any:
            leaves, tree = jax.tree.flatten(arguments)
            signature = tree, tuple(map(_kind, leaves)), tuple(sorted(static.items()))
            if signature not in variants:
                variants[signature] = self._obtain(name, jitted, arguments, static)
            return variants[signature](*arguments)

        return call

    def settle(self) -> None:
        """Call after the first step: the loaded programs work."""
        log.info("%d programs loaded, %d compiled in %.1f s", self.loaded, self.compiled, self.seconds)
        if self._store is not None:
            self._store.settle()

    def _obtain(
        self, name: str, jitted: Any, arguments: Sequence[Any], static: Mapping[str, Any]
    ) -> Compiled:
        begun = time.perf_counter()
        lowered: Lowered = jitted.lower(*arguments, **static)
        text = lowered.as_text()
        key = _key(name, text)
        found = self._load(key, lowered)
        low, _ = self._agreement.extremes(np.array([found is not None] * 2, np.int32))
        if found is not None and low[0]:
            self.loaded += 1
            program = found
        else:
            self.compiled += 1
            program = lowered.compile()
            # A callback's address is valid only in this process.
            if self._store is not None and "callback" not in text:
                self._store.put(key, lambda: serialize_executable.serialize(program)[0])
        self.seconds += time.perf_counter() - begun
        return program

    def _load(self, key: str, lowered: Lowered) -> Compiled | None:
        """Returns None, without an error, for a program that must be compiled."""
        content = None if self._store is None else self._store.get(key)
        if content is None:
            return None
        try:
            found: Compiled = serialize_executable.deserialize_and_load(
                content, lowered.in_tree, lowered.out_tree
            )
            return found
        except Exception as error:  # any kind: another format, another machine
            log.warning("%s is compiled again: %s: %s", key, type(error).__name__, error)
            return None


def _kind(leaf: Any) -> Any:
    """The properties of an argument that its program depends on."""
    return leaf.shape, leaf.dtype, getattr(leaf, "sharding", None)


def _key(name: str, text: str) -> str:
    """Names a program by its text and this process's place among the devices. The store's folder names everything else
    that the compiler's result depends on."""
    client = jax.devices()[0].client
    devices = [(device.id, device.process_index, device.device_kind) for device in jax.devices()]
    parts = [client.platform, client.platform_version, repr(devices), str(jax.process_index()), text]
    return f"{name}-{_digest(parts)}"


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def _version(package: str) -> str:
    """Empty for a package that is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
