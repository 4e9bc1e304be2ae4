"""Who of a run has a certificate, and for which host names. Free of the API client: `atoll try` uses it, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from atoll_operator.api.group import RUN_KIND, UNIT_KIND, Object, owner
from atoll_operator.plan.pods import names
from atoll_runtime.contract import identity


@dataclass(frozen=True, slots=True)
class RunOwner:
    """The run that owns the Secrets."""

    namespace: str
    name: str
    uid: str

    def reference(self) -> Object:
        return owner(RUN_KIND, self.name, self.uid)

    def __str__(self) -> str:
        return f"{RUN_KIND} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Member:
    """Somebody who has a certificate."""

    name: str
    role: Literal["syncer", "evaluator", "unit"]
    hosts: tuple[str, ...]
    unit_uid: str = ""
    """Of a unit created by a user, which owns its Secret. Empty: the run owns the Secret."""

    def identity(self, run: RunOwner) -> str:
        return identity(run.namespace, run.name, self.role, self.name)

    def owner(self, run: RunOwner) -> Object:
        return owner(UNIT_KIND, self.name, self.unit_uid) if self.unit_uid else run.reference()


def members(run: RunOwner, shards: int, units: Mapping[str, str], evaluated: bool) -> list[Member]:
    """Everybody who has a certificate; `units`: uids of units created by users, by name, empty for the run's own."""
    run_name, namespace, syncer = run.name, run.namespace, names.syncer(run.name)
    service = (syncer, f"{syncer}.{namespace}", names.syncer_host(run_name, namespace))
    pods = (names.shard_host(run_name, namespace, shard) for shard in range(shards))
    result = [Member(syncer, "syncer", (*service, *pods))]
    result += [unit_member(unit, uid) for unit, uid in units.items()]
    if evaluated:
        host = names.evaluator_host(run_name, namespace)
        result.append(Member(names.evaluator(run_name), "evaluator", (host,)))
    return result


def unit_member(name: str, uid: str = "") -> Member:
    return Member(name, "unit", (name,), uid)
