"""Generated specs on the real API server: each is refused by name of a field, or comes to rest as its status says.

All that are taken are carried through the plans in this process, and what comes of them is offered to the API server; a
tenth of them is carried out by an operator besides.
They are the same on every machine, as long as the same modules are loaded: Hypothesis draws from their constants too.
SEED in the environment draws others, SPECS changes their number.
"""

from __future__ import annotations

import contextlib
import copy
import http.client
import json
import operator
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

import pytest
from controllers import controllers
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from objects import RUN, TWO_HOSTS
from planned import BEGIN, PlannedRun, PlannedUnit, orders
from specs import FIELDS, SMALL_MODEL, Broken, broken_runs, broken_units, put, runs, units

from atoll_operator.api.learnerunit import LearnerUnitSpec
from atoll_operator.api.trainingrun import TrainingRunSpec
from atoll_operator.plan.pods.environment import check_names
from atoll_operator.plan.pods.gang import host_names
from atoll_operator.plan.pods.topology import check_slices, slice_of

pytestmark = [pytest.mark.control, pytest.mark.timeout(3600)]
SEED = int(os.environ.get("SEED") or 20261122)
COUNT = int(os.environ.get("SPECS") or 2000)
"""Specs that the API server judges, and that are carried through the plans where it takes them."""
SETTLED = COUNT // 10
"""Specs that the operator carries out besides."""
BATCH = 40
"""Runs at once."""
WAIT = 120
"""Seconds until a batch is at rest; a bound for a machine that others use too."""
SOON = 30
"""Seconds: a limit of a run that is at most as long ends while we look."""
MODELS = {"TrainingRun": TrainingRunSpec, "LearnerUnit": LearnerUnitSpec}
HOST: dict[str, Any] = {
    "apiVersion": "atoll.dev/v1alpha1",
    "kind": "TrainingRun",
    "metadata": {"name": "nobody"},
    "spec": {
        "model": {"preset": "1m"},
        "data": {"uri": "gs://bucket/data", "sequenceLength": 128},
        "target": {"globalSteps": 100},
        "checkpoint": {"uri": "gs://bucket/run"},
        "pools": [{"name": "one", "accelerator": "tpu-v6e-slice", "topology": "2x2", "units": 1}],
    },
}
"""The run that generated LearnerUnits name."""
ABSENT = re.compile("error looking up service account|no PriorityClass with name")
"""What a pod may be refused for: the user has yet to make it."""
FIELD = re.compile(r"\b(spec|metadata)(\.\w+|\[\d+\])+")
RUN_STATES = {"Ready", "Progressing", "Degraded", "Suspended", "Complete", "Failed", "Stalled"}
UNIT_STATES = {"Scheduled", "PodsReady", "Seeded", "Learning", "Healing", "Draining"}
KINDS = ("TrainingRun", "LearnerUnit", "Pod", "StatefulSet", "Service", "ConfigMap", "Secret")
Object = dict[str, Any]


def many(count: int, *phases: Phase) -> Callable[[Any], Any]:
    """So many examples from the seed."""

    def decorate(test: Any) -> Any:
        return seed(SEED)(
            settings(
                max_examples=count,
                phases=phases or (Phase.generate, Phase.shrink),
                deadline=None,
                database=None,
                print_blob=False,
                verbosity=Verbosity.normal,
                suppress_health_check=list(HealthCheck),
            )(test)
        )

    return decorate


class Line:
    """One connection to the API server, which is kept."""

    def __init__(self, api: Any) -> None:
        self._api = api
        host, port = api.server.removeprefix("https://").split(":")
        self._connection = http.client.HTTPSConnection(host, int(port), context=api.context, timeout=30)

    def send(
        self, method: str, path: str, body: Object | None = None, kind: str = "application/json"
    ) -> tuple[int, Object]:
        data = None if body is None else json.dumps(body).encode()
        self._connection.request(method, path, data, {"Content-Type": kind})
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read())

    def create(
        self, body: Object, namespace: str, query: str = "?fieldValidation=Strict"
    ) -> tuple[int, Object]:
        return self.send("POST", self._api.path(body["kind"], namespace) + query, body)

    def offer(self, body: Object) -> tuple[int, Object]:
        """By the call that the operator makes: it creates pods, and applies the rest."""
        metadata, query = body["metadata"], "?fieldValidation=Strict&fieldManager=atoll-operator&dryRun=All"
        if body["kind"] == "Pod":
            return self.create(body, metadata["namespace"], query)
        path = self._api.path(body["kind"], metadata["namespace"], metadata["name"]) + query
        return self.send("PATCH", f"{path}&force=true", body, "application/apply-patch+yaml")

    def items(self, kind: str, namespace: str) -> list[Object]:
        return list(self.send("GET", self._api.path(kind, namespace))[1]["items"])

    def clear(self, kind: str, namespace: str) -> None:
        self.send("DELETE", self._api.path(kind, namespace))

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def line(api: Any) -> Iterator[Line]:
    one = Line(api)
    yield one
    one.close()


def judged(line: Line, body: Object) -> Object | None:
    """What the API server would store; None when it refuses, and then its message is as it should be."""
    status, answer = line.create(body, "default", "?fieldValidation=Strict&dryRun=All")
    if status < 300:
        return answer
    message = answer["message"]
    assert status in (400, 422), f"{status}: {message}\n{body}"
    whole = not isinstance(body.get("spec"), dict)
    assert FIELD.search(message) or (whole and "spec: " in message), f"names no field: {message}\n{body}"
    return None


def read_alike(body: Object, stored: Object) -> None:
    """The operator reads what the API server takes, and both fill in the same."""
    model = MODELS[body["kind"]]
    whole = model.model_validate(stored["spec"]).model_dump(mode="json", by_alias=True, exclude_none=True)
    assert whole == model.model_validate(_pruned(body["spec"])).model_dump(
        mode="json", by_alias=True, exclude_none=True
    )


def _pruned(value: Any) -> Any:
    """Without nulls, which the API server takes for absent."""
    if isinstance(value, dict):
        return {key: _pruned(item) for key, item in value.items() if item is not None}
    return [_pruned(item) for item in value] if isinstance(value, list) else value


def carried_through(line: Line, body: Object, stored: Object, namespace: str) -> Counter[str]:
    """The plans come to rest with a true status, and the API server takes what they ask for; kinds to their number."""
    found: list[str] = []
    stored = {**stored, "metadata": {**stored["metadata"], "namespace": namespace}}
    offers: Iterable[Object]
    if body["kind"] == "LearnerUnit":
        unit = PlannedUnit(stored, orders(PlannedRun(HOST, namespace).seen))
        for happens in (lambda: None, lambda: unit.answer(BEGIN)):
            happens()
            unit.rest()
            found += _wrong_unit(unit.shown(), list(unit.pods.values()), *place_of(stored, HOST))
        offers = unit.made.values()
    else:
        run = PlannedRun(stored, namespace)
        run.rest(SOON)
        found += wrong_plan(run, False)
        if has_pods(stored["spec"]):
            run.answer()
            run.rest(SOON)
            found += wrong_plan(run, True)
        offers = run.offers()
    assert not found, f"{found[:5]}\n{body}"
    kinds: Counter[str] = Counter()
    for one in offers:
        status, answer = line.offer(one)
        message = answer.get("message", "")
        assert status < 300 or ABSENT.search(message), f"{one['kind']}: {message}\n{body}"
        kinds[one["kind"] if status < 300 else "refused for what is absent"] += 1
    return kinds


PARTS = {
    "runs": (runs(), COUNT // 8),
    "units": (units(), COUNT // 8),
    "broken runs": (broken_runs(), COUNT // 2),
    "broken units": (broken_units(), COUNT - COUNT // 8 * 2 - COUNT // 2),
}
"""What is drawn, and how many of it."""


@pytest.fixture(scope="module")
def tally() -> dict[str, Counter[str]]:
    """Part to verdict to the number of specs."""
    return {}


@pytest.mark.parametrize("part", PARTS)
def test_a_spec_is_refused_by_name_of_a_field_or_comes_to_rest_in_the_plans_with_objects_that_are_taken(
    line: Line, bench: Any, part: str, tally: dict[str, Counter[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    strategy, count = PARTS[part]
    verdicts: Counter[str] = Counter()
    offered: Counter[str] = Counter()

    @many(count)
    @given(strategy)
    def check(one: Object | Broken) -> None:
        body = one.body if isinstance(one, Broken) else one
        stored = judged(line, body)
        if stored is None:
            assert isinstance(one, Broken), line.create(body, "default", "?dryRun=All")[1]["message"]
        else:
            read_alike(body, stored)
            offered.update(carried_through(line, body, stored, bench.namespace))
        verdicts["refused" if stored is None else "taken"] += 1

    bench.kubelet.idle.add(bench.namespace)
    check()
    with capsys.disabled():
        print(f"\nSEED={SEED} {part}: {dict(verdicts)}, offered: {dict(offered)}", flush=True)
    assert verdicts["taken"] > 0
    assert not part.startswith("broken") or verdicts["refused"] > verdicts["taken"]
    tally[part] = verdicts


def test_an_integer_with_a_decimal_point_is_taken_or_refused_by_name_of_a_field(line: Line) -> None:
    """Rules of a whole spec read numbers of its parts, and such a number is none to CEL."""
    spec = TWO_HOSTS.model_dump(mode="json", by_alias=True, exclude_none=True)
    run = {**RUN, "metadata": {"name": "r"}}
    sized = {**run, "spec": {**RUN["spec"], "model": {"dimensions": SMALL_MODEL}}}
    unit = {"apiVersion": RUN["apiVersion"], "kind": "LearnerUnit", "metadata": {"name": "u"}, "spec": spec}
    for body in (run, sized, unit):
        assert judged(line, body) is not None
        for path in (path for path, schema in FIELDS[body["kind"]] if schema.get("type") == "integer"):
            damaged = copy.deepcopy(body)
            put(damaged, path, lambda place, key: operator.setitem(place, key, 2.0))
            judged(line, damaged)


def test_as_many_specs_as_asked_for_were_refused_or_came_to_rest(
    tally: dict[str, Counter[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    if tally.keys() != PARTS.keys():
        pytest.skip("not every part ran in this session, or one failed")
    whole = sum(tally.values(), Counter())
    with capsys.disabled():
        print(f"\nSEED={SEED} carried through: {whole.total()} specs, {dict(whole)}", flush=True)
    assert whole.total() >= COUNT


@pytest.fixture(scope="module")
def collector(plane: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The real garbage collector, without the other controllers."""
    with controllers(plane, tmp_path_factory.mktemp("collector"), "garbage-collector-controller"):
        yield


class World:
    """One namespace with an operator and the garbage collector, in which many specs are carried out at once."""

    def __init__(self, bench: Any, line: Line) -> None:
        self.bench, self.line = bench, line
        self.namespace: str = bench.namespace
        self.operator = bench.operator(ATOLL_POLL_SECONDS="1")
        self.names = 0
        self.wait: float = WAIT
        self.taken: Counter[str] = Counter()

    def carry_out(self, bodies: list[Object], answered: bool) -> dict[str, tuple[Object, list[str]]]:
        """Name to body and faults, of those that have any.

        Args:
            answered: whether the syncers answer and say that every unit learns.
        """
        taken = {HOST["metadata"]["name"]: self.line.create(HOST, self.namespace)[1]}
        for body in bodies:
            named = self._named(body)
            status, answer = self.line.create(named, self.namespace)
            assert status in (201, 400, 422), f"{status}: {answer}"
            if status == 201:
                taken[answer["metadata"]["name"]] = answer
                self.taken[body["kind"]] += 1
        if answered:
            self._answer(taken)
        faults = self._rest(taken, answered)
        for kind in ("TrainingRun", "LearnerUnit"):
            self.line.clear(kind, self.namespace)
        left = self._left()
        for name, lines in self._complaints(taken).items():
            faults.setdefault(name, []).extend(lines)
        for name in taken:
            faults.setdefault(name, []).extend(f"is left: {item}" for item in left if name in item)
        return {name: (taken[name], found) for name, found in faults.items() if found and name in taken}

    def _named(self, body: Object) -> Object:
        """The same spec under a name of its own, as long as the drawn one where that was of the longest."""
        self.names += 1
        name = f"r{self.names}"
        return {**body, "metadata": {"name": name + "x" * (len(body["metadata"]["name"]) - len(name))}}

    def _answer(self, taken: dict[str, Object]) -> None:
        """Every shard of every run says that all units learn, as soon as there are any."""
        for name, body in taken.items():
            if body["kind"] != "TrainingRun" or not has_pods(body["spec"]):
                continue
            wanted = wanted_units(body["spec"]) + len(by_hand(taken.values(), name))
            self.bench.until(
                f"the units of {name}", lambda name=name, wanted=wanted: self._begun(name) == wanted, WAIT
            )
            shards = body["spec"]["syncer"]["shards"]
            for shard in range(shards):
                self.bench.serve(body, shard=shard, shards=shards, globalStep=0, tokens=0)

    def _begun(self, run: str) -> int:
        """Units of the run that have an incarnation, or can have none."""
        units = self.line.items("LearnerUnit", self.namespace)
        return sum(
            unit["spec"]["run"] == run
            and (unit.get("status", {}).get("incarnation", 0) or not possible(unit))
            for unit in units
        )

    def _rest(self, taken: dict[str, Object], answered: bool) -> dict[str, list[str]]:
        """Faults of those that are not as they should be and stay so, when the time is over."""
        deadline = time.monotonic() + self.wait
        while True:
            seen = self._look()
            faults = {name: found for name, body in taken.items() if (found := wrong(body, seen, answered))}
            if not faults:
                time.sleep(2.5)  # status writes of figures alone wait for 2 s
                before, after = _versions(seen), _versions(self._look())
                for kind, item in {key for key in before | after if before.get(key) != after.get(key)}:
                    name = next(name for name in taken if item.startswith(name))
                    faults.setdefault(name, []).append(f"is written again: {kind} {item}")
            if not faults or time.monotonic() > deadline:
                self._count(seen)
                return faults
            time.sleep(0.2)

    def _count(self, seen: dict[str, list[Object]]) -> None:
        """Units made by hand that came to pods."""
        labels = [pod["metadata"].get("labels", {}) for pod in seen["Pod"]]
        mine = {unit["metadata"]["name"] for unit in by_hand(seen["LearnerUnit"], HOST["metadata"]["name"])}
        self.taken["with pods"] += len(mine & {one.get("atoll.dev/unit") for one in labels})

    def _look(self) -> dict[str, list[Object]]:
        return {kind: self.line.items(kind, self.namespace) for kind in KINDS}

    def _left(self) -> list[str]:
        deadline = time.monotonic() + self.wait
        while True:
            left = [
                f"{kind} {item['metadata']['name']}"
                for kind, items in self._look().items()
                for item in items
                if item["metadata"]["name"] != "kube-root-ca.crt"
            ]
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.2)

    def _complaints(self, taken: dict[str, Object]) -> dict[str, list[str]]:
        """Lines of the operator's log that are errors or carry a traceback, by the run or unit they name."""
        found: dict[str, list[str]] = {}
        text = self.operator.log.read_text()
        self.operator.log.write_text("")
        for entry in text.splitlines():
            if '"level": "error"' in entry or '"traceback"' in entry or "Traceback" in entry:
                name = next(
                    (name for name in taken if re.search(rf"\b{name}\b", entry)), next(iter(taken), "")
                )
                found.setdefault(name, []).append(entry[-1500:])
        return found


def _versions(seen: dict[str, list[Object]]) -> dict[tuple[str, str], str]:
    return {
        (kind, item["metadata"]["name"]): item["metadata"]["resourceVersion"]
        for kind, items in seen.items()
        for item in items
        if kind != "Pod"  # the test itself writes those
    }


def ends_soon(spec: Object) -> bool:
    return spec.get("activeDeadlineSeconds", SOON + 1) <= SOON


def has_pods(spec: Object) -> bool:
    """Its learners run, once somebody runs them; nobody here lets the pods of a queue go."""
    return not spec["suspend"] and not ends_soon(spec) and "queueName" not in spec


def wanted_units(spec: Object) -> int:
    """Scaled as a whole, or pool by pool."""
    return int(spec.get("units", sum(pool["units"] for pool in spec["pools"])))


def by_hand(bodies: Iterable[Object], run: str) -> list[Object]:
    """LearnerUnits that name a run and are not of its making."""
    return [
        body
        for body in bodies
        if body["kind"] == "LearnerUnit"
        and body["spec"]["run"] == run
        and "ownerReferences" not in body["metadata"]
    ]


def possible(unit: Object) -> bool:
    """There is such a slice, and its host names are short enough."""
    metadata, spec = unit["metadata"], unit["spec"]
    shape = (spec["accelerator"], spec["topology"], spec.get("machineType"), spec.get("slices", 1))
    return _possible(*shape, metadata["namespace"], len(metadata["name"]))


@lru_cache(maxsize=4096)
def _possible(
    accelerator: str, topology: str, machine: str | None, slices: int, namespace: str, length: int
) -> bool:
    try:
        shape = slice_of(accelerator, topology, machine)
        check_slices(shape, slices, "slices")
        check_names(shape, host_names(namespace, "x" * length, 1, slices * shape.hosts))
    except ValueError:
        return False
    return True


def place_of(unit: Object, run: Object | None) -> tuple[int, str]:
    """The pods that a unit is to have, and why it has none."""
    if run is None:
        return 0, "RunNotFound"
    if ends_soon(run["spec"]):
        return 0, "Finished"
    if run["spec"].get("suspend"):
        return 0, "Suspended"
    if not possible(unit):
        return 0, "SpecInvalid"
    spec = unit["spec"]
    shape = slice_of(spec["accelerator"], spec["topology"], spec.get("machineType"))
    return shape.hosts * spec.get("slices", 1), ""


def wrong_plan(run: PlannedRun, answered: bool) -> list[str]:
    """As `wrong`, of a run that was carried through the plans."""
    body, over = run.shown(), ends_soon(run.body["spec"])
    if over and body["spec"].get("ttlSecondsAfterFinished", SOON + 1) <= SOON:
        return [] if run.deleted else ["is not gone after its time to live"]
    if run.deleted:
        return ["is gone"]
    found = list(_wrong_status(body, run.shown_units(), over, answered))
    sets = [one for (kind, _), one in run.objects.items() if kind == "StatefulSet"]
    found += _wrong_replicas(body, sets, over)
    for unit in run.alike.values():
        found += _wrong_unit(unit.shown(), list(unit.pods.values()), *place_of(unit.body, body))
    return found


def wrong(body: Object, seen: dict[str, list[Object]], answered: bool) -> list[str]:
    """What is not as the spec says, or not as the status says; nothing for an object at rest."""
    name, kind = body["metadata"]["name"], body["kind"]
    now = next((item for item in seen[kind] if item["metadata"]["name"] == name), None)
    if kind == "LearnerUnit":
        runs = {item["metadata"]["name"]: item for item in seen["TrainingRun"]}
        place = place_of(body, runs.get(body["spec"]["run"]))
        return ["is gone"] if now is None else _wrong_unit(now, seen["Pod"], *place)
    over = ends_soon(body["spec"])
    if over and body["spec"].get("ttlSecondsAfterFinished", SOON + 1) <= SOON:
        return [] if now is None else ["is not gone after its time to live"]
    return ["is gone"] if now is None else list(_wrong_run(now, seen, over, answered))


def _wrong_run(run: Object, seen: dict[str, list[Object]], over: bool, answered: bool) -> Iterator[str]:
    name, spec = run["metadata"]["name"], run["spec"]
    mine = [unit for unit in seen["LearnerUnit"] if unit["spec"]["run"] == name]
    yield from _wrong_status(run, mine, over, answered)
    yield from _wrong_replicas(run, seen["StatefulSet"], over)
    if not over and not spec["suspend"]:
        held = {
            item["metadata"]["name"] for kind in ("Secret", "ConfigMap", "Service") for item in seen[kind]
        }
        needed = {f"{name}-ca", f"{name}-syncer-tls", f"{name}-config", f"{name}-syncer"}
        needed |= {f"{unit['metadata']['name']}-tls" for unit in mine}
        needed |= {f"{name}-evaluator", f"{name}-evaluator-tls"} if "evaluation" in spec else set()
        if missing := needed - held:
            yield f"there is no {', '.join(sorted(missing))}"
    for unit in mine:
        yield from _wrong_unit(unit, seen["Pod"], *place_of(unit, run))


def _wrong_status(run: Object, mine: list[Object], over: bool, answered: bool) -> Iterator[str]:
    """What of its conditions and counts is not so.

    Args:
        mine: its units.
    """
    spec, status = run["spec"], run.get("status", {})
    states = yield from _states(run, RUN_STATES | ({"Evaluated"} if "evaluation" in spec else set()))
    wanted = wanted_units(spec) + len(by_hand(mine, run["metadata"]["name"]))
    suspended = spec["suspend"] and not over
    active = not over and not suspended
    told = (status.get("units"), status.get("unitsWanted"), len(mine))
    if set(told) != {wanted}:
        yield f"{wanted} units are to be there: units, unitsWanted and LearnerUnits are {told}"
    learning = sum(_states_of(unit).get("Learning", ("", ""))[0] == "True" for unit in mine)
    if active and (status.get("unitsReady"), status.get("unitsSummary")) != (
        learning,
        f"{learning}/{wanted}",
    ):
        yield f"{learning} units learn: {status.get('unitsReady')}, {status.get('unitsSummary')}"
    serving = answered and has_pods(spec)
    able = sum(map(possible, mine)) if serving else 0
    if learning != able:
        yield f"{learning} units learn, not {able}"
    ready = (
        ("False", "DeadlineExceeded") if over
        else ("False", "Suspended") if suspended
        else ("False", "ScaledToZero") if not wanted
        else ("True", "QuorumLearning") if serving and able >= spec["quorum"]["min"]
        else ("False", "QuorumNotMet") if serving
        else ("False", "SyncerStarting")
    )  # fmt: skip
    held = (
        "SpecInvalid" if not possible(unit) else "Queued"
        for unit in sorted(mine, key=lambda unit: unit["metadata"]["name"])
        if not possible(unit) or "queueName" in unit["spec"]
    )  # fmt: skip
    waits = next(held, "") if active else ""
    expected = {
        "Ready": ready,
        "Suspended": ("True", "Suspended") if suspended else ("False", "Failed" if over else "NotSuspended"),
        "Failed": ("True", "DeadlineExceeded") if over else ("False", "NotFailed"),
        "Complete": ("False", "DeadlineExceeded" if over else "NotFinished"),
        "Degraded": ("True", waits)
        if waits
        else ("False", "Failed" if over else "Suspended" if suspended else "AsExpected"),
    }
    for condition, pair in expected.items():
        if states.get(condition) != pair:
            yield f"{condition} is {states.get(condition)}, not {pair}: {status.get('message')}"


def _wrong_replicas(run: Object, sets: Iterable[Object], over: bool) -> Iterator[str]:
    """Of its StatefulSets."""
    name, spec = run["metadata"]["name"], run["spec"]
    active = not over and not spec["suspend"]
    replicas = {item["metadata"]["name"]: item["spec"]["replicas"] for item in sets}
    shards = spec["syncer"]["shards"] if active else 0
    if replicas.get(f"{name}-syncer") != shards:
        yield f"the syncer has {replicas.get(f'{name}-syncer')} replicas, not {shards}"
    evaluators = None if over or "evaluation" not in spec else int(active)
    if replicas.get(f"{name}-evaluator") != evaluators:
        yield f"the evaluator has {replicas.get(f'{name}-evaluator')} replicas, not {evaluators}"


def _wrong_unit(unit: Object, pods: list[Object], hosts: int, waits: str) -> list[str]:
    """Its conditions, and so many pods of its gang of now; without any, why it waits."""
    name, status = unit["metadata"]["name"], unit.get("status", {})
    found: list[str] = []
    states = yield_all(_states(unit, UNIT_STATES), found)
    mine = [pod for pod in pods if pod["metadata"].get("labels", {}).get("atoll.dev/unit") == name]
    current = [pod for pod in mine if pod["metadata"]["labels"]["atoll.dev/gang"] == str(status.get("gang"))]
    if (len(mine), len(current)) != (hosts, hosts):
        found.append(f"{name} has {len(mine)} pods, {len(current)} of its gang; {hosts} are to be there")
    if hosts:
        placed = all(pod["spec"].get("nodeName") for pod in mine)
        ready = all(_states_of(pod).get("Ready", ("", ""))[0] == "True" for pod in mine)
        for condition, true in (("Scheduled", placed), ("PodsReady", placed and ready)):
            if states.get(condition, ("", ""))[0] != str(true):
                found.append(f"{name}: {condition} is {states.get(condition)}, which is not so")
    elif states.get("Scheduled") != ("False", waits):
        found.append(f"{name}: Scheduled is {states.get('Scheduled')}, not for {waits}")
    if states.get("Healing", ("", ""))[0] != "False" or status.get("restartCount"):
        found.append(f"{name} heals: {status.get('message')}")
    return found


def yield_all(generator: Iterator[str], into: list[str]) -> Any:
    """Puts what a generator yields into a list; returns what it returns."""
    while True:
        try:
            into.append(next(generator))
        except StopIteration as end:
            return end.value


def _states(body: Object, expected: set[str]) -> Any:
    """Yields what is wrong with an object's conditions as such; returns type to status and reason."""
    status, generation = body.get("status", {}), body["metadata"]["generation"]
    conditions = status.get("conditions", [])
    if status.get("observedGeneration") != generation:
        yield f"observedGeneration is {status.get('observedGeneration')}, generation is {generation}"
    if {item["type"] for item in conditions} != expected:
        yield f"conditions are {sorted(item['type'] for item in conditions)}"
    if any(item.get("observedGeneration") != generation for item in conditions):
        yield "conditions of an earlier generation"
    return _states_of(body)


def _states_of(body: Object) -> dict[str, tuple[str, str]]:
    conditions = body.get("status", {}).get("conditions", [])
    return {item["type"]: (item["status"], item.get("reason", "")) for item in conditions}


def smallest(world: World, body: Object, answered: bool) -> Object:
    """The body without what can be left out and it still goes wrong; a few tries."""
    world.wait = 15
    best = {key: body[key] for key in ("apiVersion", "kind", "metadata", "spec")}
    tries = 0
    for path in list(_paths(best["spec"])):
        less = copy.deepcopy(best)
        with contextlib.suppress(KeyError, IndexError, TypeError):
            place: Any = less["spec"]
            for key in path[:-1]:
                place = place[key]
            del place[path[-1]]
            tries += 1
            if tries <= 10 and world.carry_out([less], answered):
                best = less
    return best


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Places in it, the outermost first."""
    inner = (
        list(value.items())
        if isinstance(value, dict)
        else list(enumerate(value))
        if isinstance(value, list)
        else []
    )
    yield from ((*path, key) for key, _ in inner)
    for key, item in inner:
        yield from _paths(item, (*path, key))


def drawn(strategy: st.SearchStrategy[Any], count: int) -> list[Object]:
    """Bodies of a strategy."""
    bodies: list[Object] = []

    @many(count, Phase.generate)
    @given(strategy)
    def collect(one: Object | Broken) -> None:
        bodies.append(one.body if isinstance(one, Broken) else one)

    collect()
    return bodies


@pytest.mark.parametrize("answered", [False, True], ids=["silent", "answered"])
def test_what_is_taken_comes_to_rest_with_a_true_status_and_leaves_nothing(
    bench: Any, line: Line, collector: None, answered: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print(f"\nSEED={SEED} SPECS={COUNT}", flush=True)
    if not answered:
        bench.kubelet.idle.add(bench.namespace)
    world = World(bench, line)
    strategies = (runs(small=True), broken_runs(small=True), units(), broken_units())
    # As many of each: hypothesis is free to favour one of several strategies.
    bodies = [body for each in strategies for body in drawn(each, SETTLED // 8)]
    for begin in range(0, len(bodies), BATCH):
        faults = world.carry_out(bodies[begin : begin + BATCH], answered)
        if faults:
            body, found = next(iter(faults.values()))
            least = smallest(world, body, answered)
            text = "\n".join(f"{name}: {'; '.join(lines[:3])}" for name, (_, lines) in faults.items())
            pytest.fail(f"SEED={SEED}\n{text}\nthe smallest of them:\n{json.dumps(least['spec'])}\n{found}")
    with capsys.disabled():
        print(f"carried out: {dict(world.taken)}", flush=True)
    assert min(world.taken[kind] for kind in (*MODELS, "with pods")) > len(bodies) / 10
