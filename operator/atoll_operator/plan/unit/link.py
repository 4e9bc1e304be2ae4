"""`LinkAdequate`: whether the unit's link to the syncer carries what the run asks of it."""

from __future__ import annotations

from typing import Literal

from atoll_operator.api.common import Condition
from atoll_operator.plan.conditions import LINK_ADEQUATE, Notice, State, find, state
from atoll_runtime.contract import CommunicationSpec, LinkReport


def adequate(link: LinkReport | None, widest: str, fixed: CommunicationSpec) -> dict[str, State]:
    """The condition of a unit whose run has `widest` as its `outer.codec` and these `fixed` settings. If these settings
    fix a longer period, such as one of four rounds, its link is not the reason."""
    if link is None or not link.load:
        return {LINK_ADEQUATE: state(None, "NotMeasured", "too little was sent yet to measure the link by")}
    rounds = f"one of {link.period:g} rounds" if link.period > 1 else "every round"
    told = (
        f"{link.codec}, part in {rounds}; {link.up_gbps:g} Gbit/s up, {link.down_gbps:g} down, round trip "
        f"{1000 * link.rtt_seconds:g} ms; transfers of every round take {link.load:.0%} of an interval"
    )
    told = f"{told}: {link.reason}" if link.reason else told
    if link.advice:
        return {LINK_ADEQUATE: state(False, "SettingTooWide", f"{link.advice}; {told}")}
    if link.period > max(1, fixed.period or 1):
        return {LINK_ADEQUATE: state(False, "LinkTooSlow", told)}
    return {LINK_ADEQUATE: state(True, "Adequate" if link.codec == widest else "Narrowed", told)}


def notices(old: tuple[Condition, ...], new: tuple[Condition, ...]) -> tuple[Notice, ...]:
    """An Event when the link becomes inadequate, recovers, or needs another codec; not if it is adequate at first."""
    before, now = find(old, LINK_ADEQUATE), find(new, LINK_ADEQUATE)
    well = now.status == "True" and before.status == "Unknown"
    if before.reason == now.reason or now.status == "Unknown" or well:
        return ()
    level: Literal["Normal", "Warning"] = "Warning" if now.status == "False" else "Normal"
    return (Notice(level, now.reason, now.message, f"LinkAdequate since {now.last_transition_time}"),)
