"""Carries out the operator's plans for one run on this machine."""

from __future__ import annotations

import datetime
import ssl
import time
import urllib.request
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel

from atoll_cli.trial.pods import Pods
from atoll_operator.api.group import Object
from atoll_operator.api.learnerunit import LearnerUnitSpec, LearnerUnitStatus
from atoll_operator.api.trainingrun import TrainingRunSpec, TrainingRunStatus
from atoll_operator.certificates.authority import Authority, RunOwner, members
from atoll_operator.plan.pods.names import syncer
from atoll_operator.plan.pods.template import PodSettings, pod_settings
from atoll_operator.plan.run.observed import RunObserved, UnitFacts
from atoll_operator.plan.run.plan import plan_run
from atoll_operator.plan.run.syncer_state import UNAVAILABLE, SyncerState
from atoll_operator.plan.unit.deadlines import follow
from atoll_operator.plan.unit.plan import plan_unit
from atoll_operator.plan.unit.status import describe
from atoll_operator.plan.unit.unit import Pace, UnitObserved
from atoll_runtime.contract import NoReport, SyncerAddress, SyncerStatus, dump, identity, parse_run
from atoll_runtime.files import replace

NAMESPACE = "default"
ANSWER_SECONDS = 5.0
PASSES = 8
"""The most passes over a unit at once. One pass writes a new incarnation, and the next acts on it."""


@dataclass
class Unit:
    """A LearnerUnit: what the API server would store of it, and the unit's pace."""

    spec: LearnerUnitSpec
    status: LearnerUnitStatus = field(default_factory=LearnerUnitStatus)
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    pace: Pace | None = None


class Operator:
    """One run, from its spec to its end; `look` is one pass."""

    def __init__(self, name: str, spec: TrainingRunSpec, folder: Path) -> None:
        self.name, self.spec = name, spec
        self.status = TrainingRunStatus()
        self.units: dict[str, Unit] = {}
        self.syncer = SyncerState()
        self.pods = Pods(folder)
        self._folder = folder
        self._owner = RunOwner(NAMESPACE, name, str(uuid.uuid4()))
        port = self.pods.port
        self._addresses = tuple(
            SyncerAddress(
                host="localhost", port=port(), status_port=port(), health_port=port(), transfer_port=port()
            )
            for _ in range(spec.syncer.shards)
        )
        self._authority = Authority.new(name, datetime.datetime.now(datetime.UTC))
        own = self._certify("operator", identity(NAMESPACE, name, "operator", "operator"), ())
        self._tls = ssl.create_default_context(cafile=str(own / "ca.crt"))
        self._tls.load_cert_chain(own / "tls.crt", own / "tls.key")

    def look(self) -> None:
        """Observe, plan and act once."""
        self.pods.look(time.time())
        self.syncer = self._poll(self.syncer)
        self._look_at_run(time.time())
        for name in self.units:
            passes = 1
            while self._look_at_unit(name, time.time()) and passes < PASSES:
                passes += 1

    @property
    def objects(self) -> list[Object]:
        """Run, units and pods, with the fields that `atoll_cli.views` reads."""
        bodies = [_body("TrainingRun", self.name, self.spec, self.status)]
        bodies += [_body("LearnerUnit", name, unit.spec, unit.status) for name, unit in self.units.items()]
        return bodies + [
            {
                "kind": "Pod",
                "metadata": pod.body["metadata"] | {"uid": pod.uid},
                "spec": {"nodeName": "localhost"},
            }
            for pod in self.pods.all.values()
        ]

    def _look_at_run(self, now: float) -> None:
        plan = plan_run(self._observed(), now)
        for body in plan.apply_units:
            name = body["metadata"]["name"]
            self.units.setdefault(name, Unit(LearnerUnitSpec.model_validate(body["spec"])))
        for member in members(self._owner, len(self._addresses), dict.fromkeys(self.units, "")):
            self._certify(member.name, member.identity(self._owner), member.hosts)
        for body in plan.apply:
            self._apply(body, now)
        self.status = plan.status

    def _observed(self) -> RunObserved:
        pods = [pod.view for pod in self.pods.all.values()]
        facts = {
            name: UnitFacts(
                name=name, run=self.name, status=unit.status, spec=unit.spec, uid=unit.uid, generation=1
            )
            for name, unit in self.units.items()
        }
        return RunObserved(
            name=self.name,
            namespace=NAMESPACE,
            uid=self._owner.uid,
            generation=1,
            spec=self.spec,
            status=self.status,
            settings=self._settings(),
            units=facts,
            syncer_pods=tuple(pod for pod in pods if not pod.placement),
            syncer=self.syncer,
        )

    def _settings(self) -> PodSettings:
        own = PodSettings(run=self.name, image="none", pull_policy="Never", environment={})
        return pod_settings(own, self.spec, self.status.runtime)

    def _apply(self, body: Object, now: float) -> None:
        """Write the ConfigMap's `run.json`, or create the StatefulSet's pods."""
        if body["kind"] == "ConfigMap":
            contract = parse_run(body["data"]["run.json"]).model_copy(update={"shards": self._addresses})
            path, data = self._folder / "run.json", dump(contract).encode()
            if not path.exists() or path.read_bytes() != data:  # a process that starts may be reading it
                replace(path, data)
        if body["kind"] == "StatefulSet":
            name, template = body["metadata"]["name"], body["spec"]["template"]
            for shard in range(body["spec"]["replicas"]):
                metadata = {**template["metadata"], "name": f"{name}-{shard}"}
                self.pods.create({"metadata": metadata, "spec": template["spec"]}, syncer(self.name), now)

    def _look_at_unit(self, name: str, now: float) -> bool:
        """Make one pass over a unit. Return whether the next one should follow at once, because it sees changes."""
        unit, state = self.units[name], self.syncer
        unit.pace = follow(unit.pace, state.report_of(name), state.serving_since, now)
        observed = UnitObserved(
            now=now,
            name=name,
            namespace=NAMESPACE,
            uid=unit.uid,
            generation=1,
            spec=unit.spec,
            status=unit.status,
            pods=tuple(pod.view for pod in self.pods.of_unit(name)),
            stop="Finished" if self.status.phase in ("Complete", "Failed") else "",
            recovery=self.spec.recovery,
            begun=self.status.global_step > 0,
            settings=self._settings(),
            syncer=state,
            pace=unit.pace,
        )
        plan = describe(observed, plan_unit(observed))
        unit.status = plan.status
        if plan.advance:
            return True
        for make in plan.create:
            self.pods.create(make(), name, now)
        for removal in plan.remove:
            self.pods.remove(removal.name, removal.grace_seconds, now)
        for pod in plan.renew:
            self.pods.renew(pod.name, plan.status.incarnation, now)
        return bool(plan.create or plan.renew)

    def _poll(self, old: SyncerState) -> SyncerState:
        url = f"https://localhost:{self._addresses[0].status_port}/status"
        try:
            with urllib.request.urlopen(url, timeout=ANSWER_SECONDS, context=self._tls) as answer:
                status = SyncerStatus.read(answer.read())
        except (OSError, NoReport) as error:
            return old.missed(UNAVAILABLE, f"the syncer does not answer: {error}")
        return old.heard(status, time.time())

    def _certify(self, name: str, uri: str, hosts: tuple[str, ...]) -> Path:
        """Return the folder of a certificate. Writes the certificate the first time."""
        folder = self._folder / "certificates" / name
        if not folder.exists():
            now = datetime.datetime.now(datetime.UTC)
            pair = self._authority.issue(name, uri, ("localhost", *hosts), now)
            folder.mkdir(parents=True, mode=0o700)
            self._authority.write(folder, pair)
        return folder


def _body(kind: str, name: str, spec: BaseModel, status: BaseModel) -> Object:
    told, seen = (part.model_dump(mode="json", by_alias=True, exclude_none=True) for part in (spec, status))
    return {"kind": kind, "metadata": {"name": name}, "spec": told, "status": seen}
