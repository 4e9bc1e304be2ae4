"""Generated specs on the real API server: each is refused by name of a field, or comes to rest as its status says.

SEED in the environment repeats a session, SPECS changes their number.
"""

from __future__ import annotations

import contextlib
import copy
import http.client
import json
import os
import random
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from specs import Broken, broken_runs, broken_units, runs, units

from atoll_local.programs import find
from atoll_operator.api.learnerunit import LearnerUnitSpec
from atoll_operator.api.trainingrun import TrainingRunSpec
from atoll_operator.plan.tpu import slice_of

pytestmark = [pytest.mark.control, pytest.mark.timeout(900)]
SEED = int(os.environ.get("SEED") or random.SystemRandom().randrange(10**9))
COUNT = int(os.environ.get("SPECS") or 2000)
"""Specs that the API server judges."""
SETTLED = COUNT // 10
"""Specs that the operator carries out besides."""
BATCH = 40
"""Runs at once."""
WAIT = 120
"""Seconds until a batch is at rest; a bound for a machine that others use too."""
SOON = 30
"""Seconds: a limit of a run that is at most as long ends while we look."""
MODELS = {"TrainingRun": TrainingRunSpec, "LearnerUnit": LearnerUnitSpec}
FIELD = re.compile(r"\b(spec|metadata)(\.\w+|\[\d+\])+")
RUN_STATES = {"Ready", "Progressing", "Degraded", "Suspended", "Complete", "Failed", "Stalled"}
UNIT_STATES = {"Scheduled", "PodsReady", "Seeded", "Learning", "Healing", "Draining"}
KINDS = ("TrainingRun", "LearnerUnit", "Pod", "StatefulSet", "Service", "ConfigMap", "Secret")
Object = dict[str, Any]


def many(count: int, *phases: Phase) -> Callable[[Any], Any]:
    """So many examples from the seed of this session."""

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

    def send(self, method: str, path: str, body: Object | None = None) -> tuple[int, Object]:
        data = None if body is None else json.dumps(body).encode()
        self._connection.request(method, path, data, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read())

    def create(
        self, body: Object, namespace: str, query: str = "?fieldValidation=Strict"
    ) -> tuple[int, Object]:
        return self.send("POST", self._api.path(body["kind"], namespace) + query, body)

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


@pytest.mark.parametrize("bodies", [pytest.param(runs(), id="runs"), pytest.param(units(), id="units")])
def test_what_can_work_is_taken_and_read_alike_by_both(line: Line, bodies: st.SearchStrategy[Object]) -> None:
    @many(COUNT // 8)
    @given(bodies)
    def check(body: Object) -> None:
        stored = judged(line, body)
        assert stored is not None, line.create(body, "default", "?dryRun=All")[1]["message"]
        read_alike(body, stored)

    check()


@pytest.mark.parametrize(
    ("damaged", "share"),
    [pytest.param(broken_runs(), 0.5, id="runs"), pytest.param(broken_units(), 0.25, id="units")],
)
def test_what_is_broken_is_refused_by_name_of_a_field_or_read_alike_by_both(
    line: Line, damaged: st.SearchStrategy[Broken], share: float
) -> None:
    verdicts: Counter[str] = Counter()

    @many(round(COUNT * share))
    @given(damaged)
    def check(broken: Broken) -> None:
        stored = judged(line, broken.body)
        verdicts["refused" if stored is None else "taken"] += 1
        if stored is not None:
            read_alike(broken.body, stored)

    check()
    assert verdicts["refused"] > verdicts["taken"] > 0


@pytest.fixture(scope="module")
def collector(plane: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The real garbage collector, without the other controllers."""
    log = tmp_path_factory.mktemp("collector") / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [
                str(find("kube-controller-manager")), f"--kubeconfig={plane.kubeconfig}", "--leader-elect=false",
                "--controllers=garbage-collector-controller", "--secure-port=0",
            ],
            stdout=file,
            stderr=file,
        )  # fmt: skip
    yield
    process.kill()
    process.wait(10)


class World:
    """One namespace with an operator and the garbage collector, in which many specs are carried out at once."""

    def __init__(self, bench: Any, line: Line) -> None:
        self.bench, self.line = bench, line
        self.namespace: str = bench.namespace
        self.operator = bench.operator(ATOLL_FEED_SECONDS="1")
        self.names = 0
        self.wait: float = WAIT
        self.taken: Counter[str] = Counter()

    def carry_out(self, bodies: list[Object], answered: bool) -> dict[str, tuple[Object, list[str]]]:
        """Name to body and faults, of those that have any.

        Args:
            answered: whether the syncers answer and say that every unit learns.
        """
        taken = {}
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
            wanted = wanted_units(body["spec"])
            self.bench.until(
                f"the units of {name}",
                lambda name=name, wanted=wanted: (
                    sum(
                        unit["spec"]["run"] == name for unit in self.line.items("LearnerUnit", self.namespace)
                    )
                    == wanted
                ),
                WAIT,
            )
            shards = body["spec"]["syncer"]["shards"]
            for shard in range(shards):
                self.bench.serve(body, shard=shard, shards=shards, globalStep=0, tokens=0)

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
                return faults
            time.sleep(0.2)

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


def wrong(body: Object, seen: dict[str, list[Object]], answered: bool) -> list[str]:
    """What is not as the spec says, or not as the status says; nothing for an object at rest."""
    name, kind = body["metadata"]["name"], body["kind"]
    now = next((item for item in seen[kind] if item["metadata"]["name"] == name), None)
    if kind == "LearnerUnit":
        return ["is gone"] if now is None else _wrong_unit(now, seen["Pod"], 0)
    over = ends_soon(body["spec"])
    if over and body["spec"].get("ttlSecondsAfterFinished", SOON + 1) <= SOON:
        return [] if now is None else ["is not gone after its time to live"]
    return ["is gone"] if now is None else list(_wrong_run(now, seen, over, answered))


def _wrong_run(run: Object, seen: dict[str, list[Object]], over: bool, answered: bool) -> Iterator[str]:
    name, spec, status = run["metadata"]["name"], run["spec"], run.get("status", {})
    evaluated = "evaluation" in spec
    states = yield from _states(run, RUN_STATES | ({"Evaluated"} if evaluated else set()))
    mine = [unit for unit in seen["LearnerUnit"] if unit["spec"]["run"] == name]
    wanted = wanted_units(spec)
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
    queued = active and wanted and "queueName" in spec
    ready = (
        ("False", "DeadlineExceeded") if over
        else ("False", "Suspended") if suspended
        else ("False", "ScaledToZero") if not wanted
        else ("True", "QuorumLearning") if serving and wanted >= spec["quorum"]["min"]
        else ("False", "QuorumNotMet") if serving
        else ("False", "SyncerStarting")
    )  # fmt: skip
    expected = {
        "Ready": ready,
        "Suspended": ("True", "Suspended") if suspended else ("False", "Failed" if over else "NotSuspended"),
        "Failed": ("True", "DeadlineExceeded") if over else ("False", "NotFailed"),
        "Complete": ("False", "DeadlineExceeded" if over else "NotFinished"),
        "Degraded": ("True", "Queued")
        if queued
        else ("False", "Failed" if over else "Suspended" if suspended else "AsExpected"),
    }
    for condition, pair in expected.items():
        if states.get(condition) != pair:
            yield f"{condition} is {states.get(condition)}, not {pair}: {status.get('message')}"
    replicas = {item["metadata"]["name"]: item["spec"]["replicas"] for item in seen["StatefulSet"]}
    shards = spec["syncer"]["shards"] if active else 0
    if replicas.get(f"{name}-syncer") != shards:
        yield f"the syncer has {replicas.get(f'{name}-syncer')} replicas, not {shards}"
    evaluators = None if over or not evaluated else int(active)
    if replicas.get(f"{name}-evaluator") != evaluators:
        yield f"the evaluator has {replicas.get(f'{name}-evaluator')} replicas, not {evaluators}"
    if active:
        held = {
            item["metadata"]["name"] for kind in ("Secret", "ConfigMap", "Service") for item in seen[kind]
        }
        needed = {f"{name}-ca", f"{name}-syncer-tls", f"{name}-config", f"{name}-syncer"}
        needed |= {f"{unit['metadata']['name']}-tls" for unit in mine}
        needed |= {f"{name}-evaluator", f"{name}-evaluator-tls"} if evaluated else set()
        if missing := needed - held:
            yield f"there is no {', '.join(sorted(missing))}"
    pools = {pool["name"]: pool for pool in spec["pools"]}
    for unit in mine:
        shape = slice_of(*(unit["spec"].get(key) for key in ("accelerator", "topology", "machineType")))
        hosts = shape.hosts * pools[unit["spec"]["pool"]].get("slicesPerUnit", 1) if active else 0
        yield from _wrong_unit(unit, seen["Pod"], hosts)


def _wrong_unit(unit: Object, pods: list[Object], hosts: int) -> list[str]:
    """Its conditions, and so many pods of its gang of now."""
    name, status = unit["metadata"]["name"], unit.get("status", {})
    found = []
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
    assert min(world.taken[kind] for kind in MODELS) > len(bodies) / 10
