"""Network namespaces on a bridge: places with a link of their own, without a node.

Everything in a namespace ends with the process that made it. Call `host.prepare_namespaces` first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from atoll_local.network import Network
from atoll_local.process import Daemon, Startable, wait_for

START_SECONDS = 10.0
MORTAL = ("setpriv", "--pdeathsig", "KILL")
"""Command that ends a process together with the thread that started it."""


@dataclass
class Namespace(Startable):
    """A network namespace with an address on the bridge, and an /etc/hosts of its own."""

    name: str
    index: int
    network: Network
    root: Path
    """For pid files and logs."""
    hosts: Mapping[str, str] = field(default_factory=dict)
    """Addresses by name."""

    @property
    def address(self) -> str:
        return self.network.node(self.index)

    @property
    def relay(self) -> Daemon:
        """Delays what the namespace sends and receives, if its link has a delay."""
        return Daemon(f"{self.name}-relay", self.root)

    @property
    def _holder(self) -> Daemon:
        return Daemon(f"{self.name}-namespace", self.root)

    @property
    def pid(self) -> int | None:
        return self._holder.pid()

    @property
    def inside(self) -> tuple[str, ...]:
        """A command that runs another command in the namespace, which ends with this thread at the latest."""
        return (*MORTAL, "nsenter", "-t", str(self.pid), "-n", "-m")

    def start(self) -> None:
        """Makes the namespace, and attaches it to the bridge. Raises `ClusterError` if a command failed."""
        self.root.mkdir(parents=True, exist_ok=True)
        names = self.root / f"{self.name}-hosts"
        names.write_text(
            "".join(f"{at} {name}\n" for name, at in {"localhost": "127.0.0.1", **self.hosts}.items())
        )
        script = f"mount --bind '{names}' /etc/hosts && exec sleep infinity"
        pid = self._holder.start([*MORTAL, "unshare", "--net", "--mount", "sh", "-c", script])
        ready = Path(f"/proc/{pid}/comm")
        wait_for(f"namespace {self.name}", lambda: ready.read_text() == "sleep\n", START_SECONDS)
        self.network.attach(self.index, pid, 0)

    def stop(self) -> None:
        """Removes the namespace. Processes that run in it lose their network."""
        self.relay.stop()
        self._holder.stop()
