"""The link between a node, or another network namespace, and the others: its rate, its delay, and whether it is cut.

`tbf` limits the rate on both ends of the node's veth pair. A relay process delays frames between the node and the
bridge. A cut makes the bridge drop every frame of the node silently, as a WAN link that is down does.
"""

from __future__ import annotations

import re
import sys
from argparse import ArgumentTypeError
from dataclasses import dataclass
from pathlib import Path

from atoll_local.errors import ClusterError
from atoll_local.machine import Machine
from atoll_local.namespaces import Namespace
from atoll_local.network import sh
from atoll_local.process import wait_for

UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
LEAST_RATE, MOST_RATE = 8_000, 100 * 10**9
"""Bits per second."""
MOST_DELAY = 10.0
"""Seconds."""
QUEUE_SECONDS, LEAST_QUEUE = 0.1, 16_384
"""The longest wait of a packet for a limited link, before packets are dropped; the least size of the queue in bytes."""
BURST_SECONDS = 0.01
"""After a pause, as much passes at once as the rate allows in this time, but at least two frames."""
UP_SECONDS = 10.0
FORWARDING, DISABLED = "3", "0"
"""States of a port of the bridge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The properties of a node's link. The default has no limits."""

    rate: int | None = None
    """Bits per second in each direction; None for no limit."""
    delay: float = 0.0
    """Seconds that the link adds in each direction."""
    cut: bool = False


Attached = Machine | Namespace
"""A network namespace on a bridge."""


def parse_rate(text: str) -> int:
    """Bits per second of a text such as `40mbit`. Raises `ArgumentTypeError` for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(bit|kbit|mbit|gbit)", text.lower())
    rate = int(float(found[1]) * UNITS[found[2]]) if found else 0
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise ArgumentTypeError(f"{text!r}: a rate from 8kbit to 100gbit is wanted, such as 40mbit")
    return rate


def parse_delay(text: str) -> float:
    """Seconds of a text such as `60ms` or `1.5s`. Raises `ArgumentTypeError` for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s)", text.lower())
    delay = float(found[1]) / (1000 if found[2] == "ms" else 1) if found else -1.0
    if not 0 <= delay <= MOST_DELAY:
        raise ArgumentTypeError(f"{text!r}: a delay from 0ms to 10s is wanted, such as 60ms")
    return delay


def shape(place: Attached, link: Link) -> None:
    """Gives a running node or namespace this link, which replaces its present one. Raises `ClusterError` if the node
    or namespace is off, or a command failed."""
    pid, network = place.pid, place.network
    if pid is None:
        raise ClusterError(f"{place.name} is off: it has no link")
    inside, port = ("nsenter", "-t", str(pid), "-n"), network.link(place.index)
    for where, device in (((), port), (inside, "eth0")):
        _limit(where, device, link.rate, network.mtu)
    _relay(place, inside, port, link.delay)
    bridged = _relay_ends(place)[1] if link.delay else port
    # A port that comes up goes to forwarding by itself, so its state is set only afterwards.
    state = Path(f"/sys/class/net/{bridged}/operstate")
    wait_for(f"the link of {place.name}", lambda: state.read_text() == "up\n", UP_SECONDS, interval=0.01)
    sh("bridge", "link", "set", "dev", bridged, "state", DISABLED if link.cut else FORWARDING)


def _limit(where: tuple[str, ...], device: str, rate: int | None, mtu: int) -> None:
    sh(*where, "tc", "qdisc", "del", "dev", device, "root", check=False)
    if rate is not None:
        burst = max(2 * mtu, int(rate / 8 * BURST_SECONDS))
        queue = max(LEAST_QUEUE, burst + int(rate / 8 * QUEUE_SECONDS))
        limits = ("rate", f"{rate}bit", "burst", str(burst), "limit", str(queue))
        sh(*where, "tc", "qdisc", "add", "dev", device, "root", "tbf", *limits)


def _relay_ends(place: Attached) -> tuple[str, str]:
    """The veth pair between relay and bridge."""
    return f"{place.network.bridge}-r{place.index}", f"{place.network.bridge}-b{place.index}"


def _relay(place: Attached, inside: tuple[str, ...], port: str, delay: float) -> None:
    """Puts a relay between the node and the bridge, or takes it out."""
    near, far = _relay_ends(place)
    place.relay.stop()
    sh("ip", "link", "del", near, check=False)
    if not delay:
        sh("ip", "link", "set", port, "master", place.network.bridge)
        return
    place.network.pair(near, far)
    # The relay does not change frames, so they must be no longer than the MTU and have their checksums.
    _plain_frames((), far)
    _plain_frames(inside, "eth0")
    sh("ip", "link", "set", port, "nomaster")
    sh("ip", "link", "set", far, "master", place.network.bridge, "up")
    sh("ip", "link", "set", near, "up")
    place.relay.start((sys.executable, "-m", "atoll_local.relay", port, near, str(delay)))


def _plain_frames(where: tuple[str, ...], device: str) -> None:
    """Makes the kernel segment and checksum what this device sends, instead of the device."""
    sh(*where, "ethtool", "-K", device, "tx", "off", "tso", "off", "gso", "off")
