"""What a shard accepts from a host's messages, and what it does not."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
from lone_shard import LONE, Story, joined, reported
from msgspec import Struct
from msgspec.structs import replace

from atoll_runtime.contract import RunContract, identity
from atoll_runtime.protocol.events import Said, ShardLeft, ShardTold
from atoll_runtime.protocol.fragments import MOST_PADDING, TensorInfo, build_layout
from atoll_runtime.protocol.identifiers import MOST_TOKENS, NO_CUT, RoundId
from atoll_runtime.protocol.ledger import Account
from atoll_runtime.protocol.linkmeter import LinkReading, LinkUse
from atoll_runtime.protocol.messages import (
    LONGEST_ADDRESS,
    SEED_MESSAGE,
    Audit,
    Beginning,
    Header,
    Hello,
    Part,
    Report,
    Standing,
)
from atoll_runtime.protocol.restoring import begin
from atoll_runtime.protocol.units import Unit
from atoll_runtime.syncer import hosts
from atoll_runtime.syncer.following import followed
from atoll_runtime.syncer.hosts import Session, Sessions
from atoll_runtime.syncer.service import malformed
from atoll_runtime.syncer.status import unit_report
from atoll_runtime.syncer.summary import Other
from atoll_runtime.transport.messages import PROTOCOL, Announce, Fenced, ShardHello, Stop
from atoll_runtime.transport.transport import Peer
from atoll_runtime.transport.wire import Up, WireError, decode, encode

LINK = LinkReading(use=LinkUse("bf16", 1, 1024, 1.0))
GOOD: dict[str, Any] = {
    "hello": Hello(PROTOCOL, "r", "a", 1, 0, 1, "f", "bf16", 0, ""),
    "report": Report(1, 1, 8, 5.0, 1.0, Beginning(1.7e9, 1.7e9 + 60, 42.5, 3, 2), LINK),
    "audit": Audit(100, "v6e", 1.0),
    "header": Header(Part("a", 1, 0, 1, RoundId(1, 0, 0), 0, 1, 8, 8, 1, 0, 4, 4, 8, NO_CUT), "bf16", 8),
}
FAR = (-2, 2**31, 2**63)
NO_FIGURE = (math.nan, math.inf, -1.0, 1e18)
WRONG: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        ("hello.incarnation", "hello.seeded_step", "report.step", "report.steps", "audit.step"), FAR
    ),
    **dict.fromkeys(("header.part.incarnation", "header.part.anchor"), FAR),
    "header.part.steps": (0, *FAR),
    **dict.fromkeys(("header.part.inner_step", "header.part.cut.step", "header.part.cut.number"), FAR),
    "report.tokens": (-1, 10**15 + 1, 2**63),
    "header.part.tokens": (0, 10**15 + 1, 2**63),
    "header.part.trained": (-1, 10**15 + 1, 2**63),
    "header.part.host": (-1,),
    "hello.seed_message": ("x" * (SEED_MESSAGE + 1),),
    **dict.fromkeys([f"report.beginning.{name}" for name in ("joined", "stepped", "compiling")], NO_FIGURE),
    **dict.fromkeys(("report.beginning.compiled", "report.beginning.loaded"), (-1, 10**18)),
    **dict.fromkeys(
        [f"report.link.{each.name}" for each in fields(LinkReading) if each.name != "use"], (-1, 10**18)
    ),
    **dict.fromkeys(("report.link.up_gbps", "report.link.busy_share", "report.link.use.period"), NO_FIGURE),
    **dict.fromkeys(("report.link.use.reason", "report.link.use.advice"), ("x" * 257,)),
    **dict.fromkeys(("header.seconds", "header.round_trip", "header.turn"), (math.nan, -1.0, 1e4)),
    "hello.address": ("x" * (LONGEST_ADDRESS + 1),),
    "report.step_seconds": (math.nan, math.inf, -1.0, 86_401.0),
    "report.loss": (math.nan, math.inf, -math.inf, 1e300, -1e300),
    "report.link.use.codec": ("zip",),
    "report.link.use.streams": (-1,),
    "audit.kind": ("", "x" * 401),
}


def changed(message: Any, names: list[str], found: Any) -> Any:
    """The message with another value in a field, or in a field of that field."""
    first, *rest = names
    value = changed(getattr(message, first), rest, found) if rest else found
    made = replace if isinstance(message, Struct) else dataclasses.replace
    return made(message, **{first: value})


@pytest.mark.parametrize("name", WRONG)
def test_what_no_host_can_say_is_no_message_and_the_field_is_named(name: str) -> None:
    """Otherwise it would be in the journal, or in a status that the operator could not read."""
    kind, *names = name.split(".")
    assert decode(encode(GOOD[kind])) == GOOD[kind]
    for found in WRONG[name]:
        with pytest.raises(WireError, match=rf"\.{names[-1]}"):
            decode(encode(changed(GOOD[kind], names, found)))


def test_what_a_unit_says_of_its_beginning_is_shown() -> None:
    machine, unit = begin(LONE, (10,), [0]), Unit("a", Account((0,)))
    shown = unit_report(machine, unit, GOOD["report"]).beginning
    assert shown is not None
    assert (shown.compiling, shown.compiled, shown.loaded) == (42.5, 3, 2)
    assert unit_report(machine, unit, None).beginning is None


def test_a_step_of_a_time_that_no_step_takes_tells_nothing_of_its_pace() -> None:
    story = Story(units="a")
    story.step("a")
    story.tell(reported("a", 2, seconds=1e-310), reported("a", 3, seconds=2.0))
    assert story.machine.units["a"].pace.value == 2.0


LAYOUT = build_layout([TensorInfo("w", (10, 10), stacked=False, embedding=False)], 1)
SENT = Part("a", 1, 0, 1, RoundId(1, 0, 0), 0, 1, 8, 8, 1, 0, 128, 128, 8)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"padded": 100 + MOST_PADDING + 1},
            f"range: [0, 128) of {101 + MOST_PADDING} elements, where there are {100 + MOST_PADDING} at most",
        ),
        ({"stop": 2**40, "padded": 2**40}, "range: [0, 1099511627776) of 1099511627776 elements"),
        ({"start": 64, "stop": 64}, "range: [64, 64)"),
        ({"start": -1}, "range: [-1, 128)"),
        ({"hosts": 2}, "range: [0, 128) of 128 elements is not one of 2 hosts'"),
        ({"round": RoundId(1, 7, 0)}, "fragment: 7 of 1 does not exist"),
        ({"host": 1}, "host: 1 of 1 does not exist"),
        ({"trained": 7}, "trained: 7 is less than the 8 tokens"),
    ],
)
def test_sizes_that_no_fragment_of_the_layout_has_are_refused_before_a_byte_is_reserved(
    changes: dict[str, Any], said: str
) -> None:
    part = dataclasses.replace(SENT, **changes)
    header = Header(part, "bf16", 2 * (part.stop - part.start))
    assert malformed(Header(SENT, "bf16", 256), LAYOUT, "bf16") == ""
    assert malformed(header, LAYOUT, "bf16").startswith(said)


def test_a_shard_has_place_for_so_many_units_and_hosts_and_keeps_those_that_it_knows(
    make_run: Callable[..., RunContract],
) -> None:
    run = make_run()
    layout = build_layout([TensorInfo("w", (4, 4), stacked=False, embedding=False)], 1)

    def refused(unit: str, count: int = 1, **changes: Any) -> str:
        peer = Peer((identity(run.namespace, run.name, "unit", unit),), "here")
        hello = Hello(PROTOCOL, run.uid, unit, 1, 0, count, layout.fingerprint, run.outer.codec, 0, "")
        refusal = hosts.refusal(run, layout, peer, replace(hello, **changes), known)
        return getattr(refusal, "reason", "")

    known = {f"u{n}": Unit(f"u{n}", Account((0,))) for n in range(hosts.MOST_UNITS - 1)}
    assert refused("new") == "" == refused("new", hosts.MOST_HOSTS)
    assert refused("new", hosts.MOST_HOSTS + 1) == "4097 hosts: a unit has 4096 at most"
    known["new"] = Unit("new", Account((0,)))
    assert refused("new") == "", "it comes back"
    assert refused("newer") == "newer: this run has had 8192 units, and has place for no more"


def test_a_unit_that_boasts_of_tokens_in_every_incarnation_does_not_fill_the_journal(
    make_run: Callable[..., RunContract],
) -> None:
    """Numbers above 64 bits could not be written, which would end the shard again after each restart."""
    run, wide = make_run(), dataclasses.replace(LONE, fragments=1024, interval=1024)
    layout = build_layout([TensorInfo("w", (4, 4), stacked=False, embedding=False)], 1)
    story, refusals = Story(wide), []
    for incarnation in range(1, 30):
        hello = replace(
            joined("a", incarnation),
            run_uid=run.uid,
            fingerprint=layout.fingerprint,
            codec="bf16",
        )
        refusal = hosts.refusal(run, layout, Peer((), "here"), hello, story.machine.units)
        refusals += [refusal] if refusal else []
        if refusal is None:
            story.tell(hello, Said("a", incarnation, Report(1, 1, MOST_TOKENS, 1.0, 1.0)))
    account = story.machine.units["a"].account
    assert account.balanced and account.trained < 2**62
    assert len(refusals) == 27 and "2000000000000000 tokens" in getattr(refusals[0], "reason", "")


def test_a_unit_that_counts_backwards_is_not_slower_than_standing_still() -> None:
    """A sum over units would else be near 0, and the estimated end of the run out of range."""
    story = Story(units="ab")
    story.run(3)
    story.tell(reported("a", 4, tokens=0))
    assert story.machine.units["a"].tokens_per_second == 0.0


def test_what_is_for_one_unit_goes_to_its_hosts_and_an_older_incarnation_is_fenced() -> None:
    sessions = Sessions()
    of = {(unit, host): Session(unit, 1, host) for unit in "ab" for host in (0, 1)}
    for session in of.values():
        sessions.add(session)
    heir = Session("a", 2, 0)
    sessions.send("a", Stop(1))
    sessions.add(heir)
    sessions.fence("a", 2)
    sessions.send_all(Announce(0, 7, 7))
    assert sessions.remove(of["b", 1]) and not sessions.remove(of["a", 0]) and not sessions.remove(of["a", 1])
    sessions.send("b", Stop(2))

    def got(session: Session) -> list[object]:
        return [session.outgoing.get_nowait() for _ in range(session.outgoing.qsize())]

    assert got(of["a", 0]) == [Stop(1), None]
    assert got(of["a", 1]) == [Stop(1), Fenced(2), None]
    assert got(heir) == [Announce(0, 7, 7)]
    assert got(of["b", 0]) == [Announce(0, 7, 7), Stop(2)] and got(of["b", 1]) == [Announce(0, 7, 7)]


@pytest.mark.parametrize("last", [ConnectionResetError(), WireError()], ids=str)
async def test_shard_0_ends_a_session_from_which_it_cannot_read_and_knows_that_the_other_shard_has_left(
    last: Exception,
) -> None:
    told: list[Any] = []
    driver: Any = SimpleNamespace(feed=told.append)
    first, second = Standing(1, False, NO_CUT), Standing(2, False, NO_CUT)
    other = Other(None)

    async def incoming() -> AsyncIterator[Up]:
        yield second
        raise last

    async def session() -> None:
        with followed(driver, other, ShardHello(PROTOCOL, "uid", 1, 2, first), incoming()):
            await asyncio.Event().wait()

    serving = asyncio.create_task(session())
    await asyncio.wait({serving}, timeout=30)
    assert serving.cancelled()
    assert told == [ShardTold(1, first), ShardTold(1, second), ShardLeft(1)]
    assert other.absence
