"""The rules of a shard with one fragment for which one unit is enough."""

from __future__ import annotations

from atoll_runtime.protocol.rules import Rules

LONE = Rules(
    fragments=1,
    interval=1,
    overlap=1,
    quorum=1,
    grace_fraction=0.0,
    grace_steps=1.0,
    target_steps=10**6,
    target_tokens=None,
)
