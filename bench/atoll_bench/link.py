"""Measures how well bodies fill a link: on loopback against plain TLS sockets, on a shaped link against its rate, and
after a break.

Each end is a process of its own (`linkends`). The ends of the shaped link are in network namespaces.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from atoll_bench.figures import say, spread
from atoll_bench.linkends import NAME, UNIT
from atoll_bench.regions.wan import SITE, Region, Wan
from atoll_bench.run import SYNCER, certify
from atoll_bench.slowlink import SlowLink
from atoll_cli.errors import CommandError
from atoll_local.host import prepare_namespaces
from atoll_local.process import run
from atoll_runtime.protocol import communication

RATE, ROUND_TRIP = 2.5e9, 0.1
"""Bits a second and seconds of the shaped link."""
MTU = 65_000
"""Bytes of a frame: large, so that the relay handles few frames."""
SEVERAL = communication.FIRST_STREAMS
"""Streams on loopback: as many as the product begins with. One stream is measured too."""
SIZE = 256 << 20
"""Bytes of the body in the break case, and of each body on the shaped link."""
COLD, BESIDE, BODIES = 2, 4, 6
"""For the shaped link: turns until TCP knows what its connections carry; concurrent transfers; bodies of each."""
PROXY_BYTES = 128 << 10
"""Bytes that the kernel keeps at each end of the proxy that breaks connections. A router keeps little too."""
END_SECONDS = 120.0
"""Time limit for the shard's end after the last body, for the start of the unit's end, and for each of its turns."""


@dataclass(frozen=True)
class LinkFigure:
    """One line of `atoll bench link --json`."""

    case: str
    ratio: float | None = None
    """The smaller ratio of the two directions: to plain TLS sockets in turns with it, or to the shaped rate."""
    push_ratio: float | None = None
    fetch_ratio: float | None = None
    ratio_quartiles: tuple[float, float] | None = None
    push: float | None = None
    """Bytes a second."""
    fetch: float | None = None
    streams: int = 1
    one_stream_push_ratio: float | None = None
    """On loopback alone."""
    one_stream_fetch_ratio: float | None = None
    loop_lag_p99: float | None = None
    """Seconds by which the shard's event loop woke late during transfers."""
    loop_seconds_per_gib: float | None = None
    """CPU seconds of the event loop for each GiB that the shard received or sent."""
    resent_share: float | None = None
    """Bytes that were sent twice, divided by the bytes of the body."""


def measure(case: Sequence[str], megabytes: int, repeat: int) -> Iterator[LinkFigure]:
    """Raises `CommandError` if an end fails; `ClusterError` or `HostError` if the shaped link cannot be made."""
    if "shaped" in case:
        prepare_namespaces(say)  # before the minutes on loopback
    with tempfile.TemporaryDirectory(prefix="atoll-bench-link-") as name:
        folder = Path(name)
        certify(folder, "bench", [UNIT], NAME, SITE)
        if "loopback" in case:
            one, several = (loopback(folder, megabytes << 20, streams, repeat) for streams in (1, SEVERAL))
            yield replace(
                several, one_stream_push_ratio=one.push_ratio, one_stream_fetch_ratio=one.fetch_ratio
            )
        if "shaped" in case:
            yield shaped(folder, repeat)
        if "break" in case:
            yield broken(folder)


@contextmanager
def served(folder: Path, size: int, streams: int, *inside: str) -> Iterator[dict[str, Any]]:
    """Runs the shard's end. Yields its ports, to which its figures are added at the end."""
    command = end("serve", inside, folder=str(folder / SYNCER), size=size, streams=streams)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            told: dict[str, Any] = json.loads(process.stdout.readline() or "{}")
            if not told:
                raise CommandError("the shard's end of the link did not start")
            yield told
            told |= json.loads(process.communicate(timeout=END_SECONDS)[0] or "{}")
        finally:
            process.kill()


def end(what: str, inside: Sequence[str], **arguments: Any) -> list[str]:
    """The command of one end. `inside` is its prefix, which enters a network namespace."""
    return [*inside, sys.executable, "-m", "atoll_bench.linkends", what, json.dumps(arguments)]


def rates(folder: Path, inside: Sequence[str] = (), **arguments: Any) -> dict[str, list[float]]:
    """Returns what the unit's end measures; see `linkends.measure`. Raises `CommandError` if it fails, or takes too
    long."""
    command = end("measure", inside, folder=str(folder / UNIT), **arguments)
    limit = END_SECONDS * (1 + arguments.get("cold", 0) + arguments.get("repeat", 1))
    rates: dict[str, list[float]] = json.loads(
        run(command, limit, raises=CommandError, name="the unit's end of the link")
    )
    return rates


def loopback(folder: Path, size: int, streams: int, repeat: int) -> LinkFigure:
    """Measures the product against plain sockets."""
    with served(folder, size, streams) as told:
        place: dict[str, Any] = {"host": NAME, "port": told["port"], "plain": told["plain"]}
        found = rates(folder, **place, size=size, streams=streams, cold=1, repeat=repeat)
    pairs = {
        way: [one / other for one, other in zip(found[way], found[f"plain_{way}"], strict=True)]
        for way in ("push", "fetch")
    }
    return _figure("loopback", streams, found, pairs, told)


def shaped(folder: Path, repeat: int) -> LinkFigure:
    """Measures the product against the rate of the link."""
    streams = communication.streams(1, RATE, ROUND_TRIP)
    region = Region(UNIT, RATE / 1e9, ROUND_TRIP / 2)
    with (
        Wan(folder / "wan", (region,), MTU) as wan,
        served(folder, SIZE, streams, *wan.site.inside) as told,
    ):
        wan.link(1.0)
        turns = {"cold": COLD, "repeat": repeat, "beside": BESIDE, "bodies": BODIES}
        place = {"host": SITE, "port": told["port"]}
        found = rates(folder, wan.places[UNIT].inside, size=SIZE, streams=streams, **place, **turns)
    shares = {way: [each * 8 / RATE for each in found[way]] for way in ("push", "fetch")}
    return _figure("shaped", streams, found, shares, told)


def broken(folder: Path) -> LinkFigure:
    """Measures how much more passes a proxy that breaks all connections half-way than one that does not."""
    passed = []
    for cut in (False, True):
        with served(folder, SIZE, 2) as told, SlowLink(NAME, told["port"], PROXY_BYTES) as link:
            if cut:
                link.cut_at = SIZE // 2
            rates(folder, size=SIZE, streams=2, host=NAME, port=link.port)
            passed.append(link.sent)
    whole, with_break = passed
    return LinkFigure("break", resent_share=(with_break - whole) / SIZE, streams=2)


def _figure(
    case: str,
    streams: int,
    found: dict[str, list[float]],
    ratios: dict[str, list[float]],
    told: dict[str, Any],
) -> LinkFigure:
    push, fetch = spread(ratios["push"]), spread(ratios["fetch"])
    smaller = min(push, fetch)
    return LinkFigure(
        case,
        ratio=smaller[0],
        push_ratio=push[0],
        fetch_ratio=fetch[0],
        ratio_quartiles=smaller[1:],
        push=spread(found["push"])[0],
        fetch=spread(found["fetch"])[0],
        streams=streams,
        loop_lag_p99=told["loop_lag_p99"],
        loop_seconds_per_gib=told["loop_seconds_per_gib"],
    )
