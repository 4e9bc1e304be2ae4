"""A containerd store with all images unpacked. Copying it to a node by hard links takes about a second."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from atoll_local.errors import HostError
from atoll_local.process import Daemon, run, wait_for

IMPORT_TIMEOUT = 600.0


class Template:
    """The store in `folder`, and a record of the content from which each image was built."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.record = folder / "images.json"

    def holds(self, reference: str, key: str) -> bool:
        """Whether the image is here and was built from the content `key`."""
        return self.keys().get(reference) == key

    def add(self, reference: str, key: str, archive: Path) -> None:
        """Imports and unpacks an archive, replacing an older image of that name. Raises `HostError` if containerd
        refused it, and `ClusterError` if containerd did not start."""
        keys = self.keys()
        keys.pop(reference, None)
        self._write(keys)
        older = f"{reference}-older"
        with self._containerd() as ctr:
            # Until the new image is unpacked, the older one protects their common snapshots from garbage
            # collection. The import takes over its name, so it gets another tag.
            known = run([*ctr, "images", "list", "--quiet"], IMPORT_TIMEOUT).split()
            if reference in known:
                run([*ctr, "images", "tag", "--force", reference, older], IMPORT_TIMEOUT)
            run([*ctr, "images", "import", str(archive)], IMPORT_TIMEOUT)
            run([*ctr, "images", "remove", "--sync", older], IMPORT_TIMEOUT)
        self._write({**keys, reference: key})

    def copy_to(self, target: Path) -> None:
        """Copies the store for one node: databases as copies, everything else as hard links if possible."""
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            run(["cp", "-al", self.store, target], IMPORT_TIMEOUT)
        except HostError:  # another file system needs a full copy, which is slow but equal
            shutil.rmtree(target, ignore_errors=True)
            run(["cp", "-a", self.store, target], IMPORT_TIMEOUT)
            return
        for database in self.store.rglob("*.db"):
            if "snapshots" not in database.relative_to(self.store).parts:
                copy = target / database.relative_to(self.store)
                copy.unlink()
                shutil.copy2(database, copy)

    def keys(self) -> dict[str, str]:
        """Key of the content of each image here."""
        try:
            keys: dict[str, str] = json.loads(self.record.read_text())
        except (OSError, ValueError):
            return {}
        return keys

    def _write(self, keys: dict[str, str]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.record.with_suffix(".partial")
        partial.write_text(json.dumps(keys, indent=2))
        partial.replace(self.record)

    @contextmanager
    def _containerd(self) -> Iterator[list[str]]:
        """Runs containerd on this store during an import; yields the beginning of a `ctr` command."""
        with TemporaryDirectory(prefix="atoll-containerd-") as folder:
            state = Path(folder)
            socket = state / "sock"
            config = state / "config.toml"
            config.write_text('version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n')
            daemon = Daemon("containerd", state)
            daemon.start(
                [
                    # containerd ends with this process.
                    *("setpriv", "--pdeathsig=KILL", "containerd"),
                    f"--config={config}",
                    f"--root={self.store}",
                    f"--state={state / 'state'}",
                    f"--address={socket}",
                ]
            )
            try:
                wait_for("containerd for the images", socket.is_socket, 20, daemon.tail(2))
                yield ["ctr", f"--address={socket}", "--namespace=k8s.io"]
            finally:
                # A clean end, because its database is copied to the nodes.
                daemon.stop(signal.SIGTERM, grace=10)
