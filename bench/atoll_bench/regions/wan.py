"""Four regions and the syncer's site as network namespaces. The links between them are limited and delayed."""

from __future__ import annotations

import itertools
import os
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from atoll_bench.figures import say
from atoll_cli.errors import CommandError
from atoll_local.host import prepare_namespaces
from atoll_local.link import LEAST_RATE, Link, shape
from atoll_local.namespaces import Namespace
from atoll_local.network import Network
from atoll_local.process import Startable

PARAMETERS, STEP_SECONDS = 12e9, 5.0
"""Of the large model, whose links are scaled down. It is that of the published run in four regions of the United
States."""
SITE = "syncer"
"""The name of the syncer's site, and the host name of the syncer."""
Bytes = tuple[int, int]
"""Sent and received."""
NICE = -15
"""Niceness of the relays, so that a link keeps its delay when the cores are busy."""


@dataclass(frozen=True)
class Region:
    """A place, and its link to the others."""

    name: str
    gbps: float
    """Gbit/s in each direction, for a model of 12 billion parameters."""
    delay: float
    """Seconds that the link adds in each direction; the syncer's site adds none."""


REGIONS = (
    Region("central", 2.0, 0.006),
    Region("east", 3.0, 0.014),
    Region("south", 4.0, 0.004),
    Region("west", 5.0, 0.026),
)
"""Round trips between two of them take 20 to 80 ms."""


def scale_of(parameters: int, step_seconds: float) -> float:
    """Returns the factor for rates with which bytes per step relative to bandwidth are those of the large model."""
    return parameters / PARAMETERS * STEP_SECONDS / step_seconds


def round_trips() -> tuple[float, float]:
    """Shortest and longest round trip between two of these regions, in seconds."""
    found = [2 * (one.delay + other.delay) for one, other in itertools.combinations(REGIONS, 2)]
    return min(found), max(found)


class Wan(Startable):
    """Use as a context manager, which removes everything at its end."""

    def __init__(self, folder: Path, regions: tuple[Region, ...] = REGIONS, mtu: int = 1500) -> None:
        """`mtu`: bytes of a frame. The relays can carry fast links only with long frames."""
        self.regions = regions
        self._network = Network(bridge="atollwan", subnet="10.252.0.0/24", pods="10.246.0.0/16", mtu=mtu)
        site = self._network.node(len(regions))

        def place(index: int, name: str) -> Namespace:
            own = self._network.node(index)
            names = {SITE: site, socket.gethostname(): own}  # gloo listens on the address of the host's name
            return Namespace(name, index, self._network, folder, names)

        self.places = {region.name: place(index, region.name) for index, region in enumerate(regions)}
        self.site = place(len(regions), SITE)
        self._started = ExitStack()

    def start(self) -> None:
        """Raises `HostError` if this machine cannot make namespaces, and `CommandError` if another bench has the
        bridge."""
        prepare_namespaces(say)
        if taken := self._network.taken():
            raise CommandError(
                f"{taken} is there already: wait for the end of the other bench, or remove what one has left by "
                f"`ip link delete {self._network.bridge}`"
            )
        self._started.callback(self._network.down)
        self._network.up()
        for place in (*self.places.values(), self.site):
            self._started.enter_context(place)

    def stop(self) -> None:
        self._started.close()

    def link(self, scale: float) -> None:
        """Gives each region its link, with all rates multiplied by `scale`."""
        for region in self.regions:
            place, rate = self.places[region.name], max(LEAST_RATE, round(1e9 * region.gbps * scale))
            shape(place, Link(rate=rate, delay=region.delay))
            if (relay := place.relay.pid()) is not None:
                os.setpriority(os.PRIO_PROCESS, relay, NICE)

    def free(self) -> None:
        """Removes limits and delays from all links."""
        for place in self.places.values():
            shape(place, Link())

    def carried(self) -> dict[str, Bytes]:
        """Bytes that each region has sent and received so far, headers included."""
        found = {}
        for name, place in self.places.items():
            folder = Path(f"/sys/class/net/{self._network.link(place.index)}/statistics")
            found[name] = int((folder / "rx_bytes").read_text()), int((folder / "tx_bytes").read_text())
        return found
