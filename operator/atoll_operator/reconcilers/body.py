"""Bodies of runs and units in memory, with their models, and podTemplates, which many of them have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any
from weakref import WeakValueDictionary

import msgspec
from pydantic import ValidationError

from atoll_operator.api.group import Object
from atoll_operator.api.learnerunit import LearnerUnit, LearnerUnitStatus
from atoll_operator.api.podtemplate import PodTemplate
from atoll_operator.api.stored import M, known
from atoll_operator.api.trainingrun import OptionalSpec, TrainingRun, TrainingRunSpec, TrainingRunStatus
from atoll_operator.kube.cache import controller_uid
from atoll_operator.kube.errors import Unreadable
from atoll_operator.plan.conditions import document
from atoll_operator.plan.limits import Claim, run_claim
from atoll_operator.plan.run.observed import UnitFacts
from atoll_runtime.contract import problems


@dataclass(frozen=True, eq=False)
class Template:
    """What is read of equal podTemplates."""

    content: PodTemplate | Object
    """Without what this version does not know; as it is if it cannot be read."""
    unknown: Mapping[str, Any]


class Templates:
    """Templates by what was read. All units of a run have one podTemplate, and it may have hundreds of KiB."""

    def __init__(self) -> None:
        self._read: WeakValueDictionary[bytes, Template] = WeakValueDictionary()
        self._models: WeakValueDictionary[bytes, PodTemplate] = WeakValueDictionary()
        """By the digest of all values: a run's template may leave out what a unit's says."""

    def read(self, content: Object) -> Template:
        """The same object for equal templates, so that a run is compared with thousands of units by identity."""
        digest = _digest(content)
        if (found := self._read.get(digest)) is None:
            try:
                model, unknown = known(PodTemplate, content)
            except ValidationError:  # each body reports it
                found = Template(content, {})
            else:
                found = Template(self._models.setdefault(_digest(document(model)), model), unknown)
            self._read[digest] = found
        return found


class Body(dict[str, Any]):
    """The body of a run or a unit. Its model may raise Unreadable."""

    template: Template | None = None
    """That of its spec, which has the content."""
    unknown: Mapping[str, Any] = MappingProxyType({})
    """Its fields and values that this version does not know, by path."""

    @cached_property
    def unit(self) -> LearnerUnit:
        return self._read(LearnerUnit)

    @cached_property
    def controller(self) -> str:
        return controller_uid(self)

    @cached_property
    def facts(self) -> UnitFacts:
        """The unit as the run sees it that controls it, or any run if a user made it."""
        try:
            unit = self.unit
        except Unreadable:
            status, spec = self.status_of(LearnerUnitStatus), None
        else:
            status, spec = unit.status, unit.spec
        metadata = self["metadata"]
        stays = "deletionTimestamp" not in metadata
        return UnitFacts(
            name=metadata["name"],
            run=self["spec"]["run"],
            status=status,
            spec=spec,
            uid=metadata["uid"],
            owned=bool(self.controller) and stays,
            by_hand=not self.controller and stays,
            generation=metadata["generation"],
        )

    @cached_property
    def run(self) -> TrainingRun:
        return self._read(TrainingRun)

    @cached_property
    def for_units(self) -> TrainingRun:
        """The run. If it is unreadable, only the parts of it that its units need."""
        with suppress(Unreadable):
            return self.run
        spec = TrainingRunSpec.model_construct(**dict(self._known(OptionalSpec, self["spec"])[0]))
        return TrainingRun.model_construct(spec=spec, status=self.status_of(TrainingRunStatus))

    @property
    def claim(self) -> Claim | None:
        """What a run has and wants in its namespace."""
        with suppress(Unreadable):
            return run_claim(self["metadata"], self.run.spec, self.run.status)
        with suppress(Unreadable):
            return run_claim(self["metadata"], None, self.status_of(TrainingRunStatus))
        return None

    def status_of(self, model: type[M]) -> M:
        return self._known(model, self.get("status", {}))[0]

    def _read(self, model: type[M]) -> M:
        parts = {"spec": self["spec"], "status": self.get("status", {})}
        found, unknown = self._known(model, parts)
        of_template = self.template.unknown if self.template is not None else {}
        self.unknown = unknown | {f"spec.podTemplate.{path}": value for path, value in of_template.items()}
        return found

    @staticmethod
    def _known(model: type[M], document: Object) -> tuple[M, dict[str, Any]]:
        try:
            return known(model, document)
        except ValidationError as error:
            raise Unreadable(problems(error)) from error


def _digest(content: Object) -> bytes:
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).digest()
