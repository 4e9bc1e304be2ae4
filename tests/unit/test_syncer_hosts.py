"""What a shard takes over from a host's messages, and what it does not."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from atoll_runtime.contract import RunContract, identity
from atoll_runtime.protocol.events import Part
from atoll_runtime.protocol.fragments import MOST_PADDING, TensorInfo, build_layout
from atoll_runtime.protocol.identifiers import NO_CUT, CutId, RoundId
from atoll_runtime.protocol.linkmeter import LinkReading, LinkUse
from atoll_runtime.syncer import handshake, hosts
from atoll_runtime.syncer.hosts import Session, Sessions
from atoll_runtime.transport.messages import (
    PROTOCOL,
    Announce,
    Beginning,
    Fenced,
    Header,
    Hello,
    Mark,
    Message,
    Report,
    Stop,
)
from atoll_runtime.transport.transport import Peer


@pytest.mark.parametrize("length", [0, hosts.MESSAGE_LIMIT, hosts.MESSAGE_LIMIT + 1, 10**6])
def test_what_a_unit_says_of_its_seed_is_kept_in_few_characters(length: int) -> None:
    """The journal holds it of every unit, in every record."""
    said = "".join(chr(97 + n % 26) for n in range(length))
    hello = Hello(PROTOCOL, "r", "a", 1, 0, 1, "f", "bf16", (0,), 0, said)
    kept = handshake.joined(hello).seed_message
    assert len(kept) == min(length, hosts.MESSAGE_LIMIT)
    assert said.startswith(kept.removesuffix("…")) and kept.endswith("…") == (length > hosts.MESSAGE_LIMIT)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 1e-310, 9e-7, 86_401.0])
def test_a_report_of_a_step_that_took_a_time_that_no_step_takes_is_refused_by_name(seconds: float) -> None:
    report = Report(1, 1, 8, 5.0, seconds, 8)
    with pytest.raises(ValueError, match=r"step_seconds: .* must be 0, or within 1e-06 … 86400"):
        hosts.reported(Session("a", 1, 0), report)


@pytest.mark.parametrize("seconds", [0.0, hosts.SHORTEST_STEP, 1.0, 86_400.0])
def test_a_report_of_a_step_that_took_its_time_or_does_not_tell_it_is_taken(seconds: float) -> None:
    assert hosts.reported(Session("a", 1, 0), Report(1, 1, 8, 5.0, seconds, 8)).step_seconds == seconds


BEGINNING = Beginning(1.7e9, 1.7e9 + 60, 42.5, 3, 2)


@pytest.mark.parametrize("field", Beginning.__struct_fields__)
def test_a_beginning_that_no_unit_has_had_is_refused_by_the_name_of_its_field(field: str) -> None:
    """The operator could not read the status of any unit with it."""
    session, report = Session("a", 1, 0), Report(1, 1, 8, 5.0, 1.0, 8, beginning=BEGINNING)
    assert hosts.reported(session, report).steps == 1
    for found in (math.nan, math.inf, -1, 10**18):
        wrong = replace(report, beginning=replace(BEGINNING, **{field: found}))
        with pytest.raises(
            ValueError, match=rf"beginning\.{field}: {found} must be within 0 … 1000000000000"
        ):
            hosts.reported(session, wrong)


@pytest.mark.parametrize(
    "field", [each.name for each in dataclasses.fields(LinkReading) if each.name != "use"]
)
def test_a_link_that_no_host_has_is_refused_by_the_name_of_its_field(field: str) -> None:
    """The operator could not read the status of any unit with it."""
    session, report = Session("a", 1, 0), Report(1, 1, 8, 5.0, 1.0, 8)
    for found in (math.nan, math.inf, -1, 10**18):
        wrong = replace(report, link=LinkReading(**{field: found}))
        with pytest.raises(ValueError, match=rf"link\.{field}: {found} must be within 0 … "):
            hosts.reported(session, wrong)


@pytest.mark.parametrize(
    ("field", "found"),
    [("codec", "zip"), ("reason", "x" * 257), ("advice", "x" * 257), ("streams", -1), ("period", math.inf)],
)
def test_a_use_of_a_link_that_no_host_makes_is_refused(field: str, found: Any) -> None:
    wrong = LinkReading(use=LinkUse(**{field: found}))
    with pytest.raises(ValueError, match=r"link\."):
        hosts.reported(Session("a", 1, 0), replace(Report(1, 1, 8, 5.0, 1.0, 8), link=wrong))


def test_what_a_link_is_used_for_is_told_once_with_its_reason() -> None:
    session, report = Session("a", 1, 0), Report(1, 1, 8, 5.0, 1.0, 8)
    first = LinkUse("bf16", 1, 1024, 1.0)
    slow = dataclasses.replace(first, codec="int8", load=0.6, reason="bf16 would take 1.2")
    assert hosts.reported(session, replace(report, link=LinkReading(use=first))).use is None
    changed = replace(report, link=LinkReading(use=slow))
    assert hosts.reported(session, changed, first).use == slow
    assert hosts.reported(session, changed, dataclasses.replace(slow, load=0.5)).use is None


GOOD: dict[type[Any], Message | Part] = {
    Hello: Hello(PROTOCOL, "r", "a", 1, 0, 1, "f", "bf16", (0,), 0, ""),
    Report: Report(1, 1, 8, 5.0, 1.0, 8),
    Mark: Mark(NO_CUT, 8),
    Part: Part("a", 1, 0, 1, RoundId(1, 0, 0), 0, 1, 8, 8, 1, 0, 4, 4, 8),
}


def changed(kind: type[Any], **fields: Any) -> Any:
    """A good message with other fields."""
    return (dataclasses.replace if kind is Part else replace)(GOOD[kind], **fields)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("kind", "field"),
    [(kind, field) for kind, good in GOOD.items() for field in hosts.BOUNDS if hasattr(good, field)],
)
def test_a_number_that_no_host_can_have_come_to_is_refused_by_the_name_of_its_field(
    kind: type[Any], field: str
) -> None:
    """It would stand in the journal, or end the shard at every start because it does not fit into a record."""
    most = hosts.BOUNDS[field]
    assert not hosts.beyond(GOOD[kind]) and not hosts.beyond(changed(kind, **{field: most}))
    for found in (-1, most + 1, 2**63):
        said = hosts.beyond(changed(kind, **{field: found}))
        assert said == f"{field}: {found} must be within 0 … {most}"


@pytest.mark.parametrize("kind", [Mark, Part])
@pytest.mark.parametrize("cut", [CutId(1, hosts.LAST_STEP + 1), CutId(hosts.LAST_CUT + 1, 1), CutId(-2, 1)])
def test_a_cut_further_than_any_run_comes_is_refused_by_name(kind: type[Any], cut: CutId) -> None:
    assert f"cut: {cut.step}, number {cut.number} must be within" in hosts.beyond(changed(kind, cut=cut))


def test_a_report_and_a_mark_of_what_no_host_has_trained_are_refused() -> None:
    session = Session("a", 1, 0)
    with pytest.raises(ValueError, match="tokens: 1152921504606846976 must be within"):
        hosts.reported(session, Report(5, 5, 2**60, 1.0, 1.0, 7))
    with pytest.raises(ValueError, match="trained: -1 must be within"):
        hosts.marked(session, Mark(NO_CUT, -1))


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
    ],
)
def test_sizes_that_no_fragment_of_the_layout_has_are_refused_before_a_byte_is_reserved(
    changes: dict[str, Any], said: str
) -> None:
    part = dataclasses.replace(SENT, **changes)
    header = Header(part, "bf16", 2 * (part.stop - part.start))
    assert hosts.malformed(Header(SENT, "bf16", 256), LAYOUT, "bf16") == ""
    assert hosts.malformed(header, LAYOUT, "bf16").startswith(said)
    with pytest.raises(ValueError, match=re.escape(said)):
        hosts.offered(Session("a", 1, 0), header, LAYOUT, "bf16")


def test_a_shard_has_place_for_so_many_units_and_hosts_and_keeps_those_that_it_knows(
    make_run: Callable[..., RunContract],
) -> None:
    run = make_run()
    layout = build_layout([TensorInfo("w", (4, 4), stacked=False, embedding=False)], 1)

    def refused(unit: str, count: int = 1, **changes: Any) -> str:
        peer = Peer((identity(run.namespace, run.name, "unit", unit),), "here")
        hello = Hello(PROTOCOL, run.uid, unit, 1, 0, count, layout.fingerprint, run.outer.codec, (0,), 0, "")
        refusal = handshake.refusal(run, layout, peer, replace(hello, **changes), known)
        return "" if refusal is None else refusal.reason

    known = dict.fromkeys(f"u{n}" for n in range(handshake.MOST_UNITS - 1))
    assert refused("new") == "" == refused("new", handshake.MOST_HOSTS)
    assert refused("new", handshake.MOST_HOSTS + 1) == "4097 hosts: a unit has 4096 at most"
    assert refused("new", incarnation=2**63).startswith("incarnation: 9223372036854775808 must be within")
    assert refused("new", versions=(-1,)) == "", "it holds nothing yet"
    assert refused("new", versions=(2**63,)).startswith("versions: (9223372036854775808,) must be within")
    known["new"] = None
    assert refused("new") == "", "it comes back"
    assert refused("newer") == "newer: this run has had 8192 units, and has place for no more"


def test_what_is_for_one_unit_goes_to_its_hosts_and_an_older_incarnation_is_fenced() -> None:
    sessions = Sessions()
    of = {(unit, host): Session(unit, 1, host) for unit in "ab" for host in (0, 1)}
    for session in of.values():
        sessions.add(session)
    heir = Session("a", 2, 0)
    sessions.send("a", Stop(1))
    sessions.add(heir)
    sessions.fence("a", 2)
    sessions.send_all(Announce(0, 7, True))
    assert sessions.remove(of["b", 1]) and not sessions.remove(of["a", 0]) and not sessions.remove(of["a", 1])
    sessions.send("b", Stop(2))

    def got(session: Session) -> list[object]:
        return [session.outgoing.get_nowait() for _ in range(session.outgoing.qsize())]

    assert got(of["a", 0]) == [Stop(1), None]
    assert got(of["a", 1]) == [Stop(1), Fenced(2), None]
    assert got(heir) == [Announce(0, 7, True)]
    assert got(of["b", 0]) == [Announce(0, 7, True), Stop(2)] and got(of["b", 1]) == [Announce(0, 7, True)]
