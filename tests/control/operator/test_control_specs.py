"""Specs, of a table and generated: the API server judges them as the CEL library does, and takes what they become."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from apiserver import Api, Refusal
from control_bench import Bench
from memory_world import World, played
from objects import RUN, TWO_HOSTS
from refusals import Row, patched, rows
from specs import FIELDS, PARTS, drawn

from atoll_cli.simulate.admission import faults
from atoll_operator.api.group import LABEL_SLICE, LABEL_UNIT, NODE_POOL, TPU

pytestmark = pytest.mark.timeout(300)
Object = dict[str, Any]
DRY = "?dryRun=All&fieldValidation=Strict"
ABSENT = re.compile("error looking up service account|no PriorityClass with name")
"""What a pod may be refused for: the user has yet to make it."""
FIELD = re.compile(r"\bspec(\.[\w./-]+|\[\d+\])*: |unknown field \"spec|\bmetadata\.name")
HOST = patched(RUN, {"metadata.name": "host"})
"""The run that generated LearnerUnits name."""
PASSES = 30
"""Seconds of simulated time, in which every object gets what it needs."""


def made(bodies: Iterable[Object]) -> list[Object]:
    """All objects of a memory world in which these were reconciled: every pod gets a node, and nothing runs on it."""

    async def work(world: World) -> list[Object]:
        world.operate()
        for body in bodies:
            world.server.create({**body, "metadata": {**body["metadata"], "namespace": "ns"}})
        for _ in range(PASSES):
            await asyncio.sleep(1)
            for pod in list(world.server.every("Pod")):
                if "nodeName" not in pod["spec"] and not pod["spec"].get("schedulingGates"):
                    bind(world, pod)
        return list(world.server.objects.values())

    return played(0, work)


def bind(world: World, pod: Object) -> None:
    """To a node of its own, in the node pool of its slice."""
    name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
    own = {NODE_POOL: f"{labels[LABEL_UNIT]}-{labels.get(LABEL_SLICE)}"}
    metadata = {"name": f"node-{name}", "namespace": "ns"}
    metadata |= {"labels": {**own, **pod["spec"].get("nodeSelector", {})}}
    status = {"allocatable": {TPU: "8"}, "conditions": [{"type": "Ready", "status": "True"}]}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": status}
    world.server.create(node)
    bound = world.server.get("Pod", name)
    bound["spec"]["nodeName"] = f"node-{name}"
    bound["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
    world.server.change(bound)


def offered(
    api: Api, bodies: Iterable[Object], namespace: str, changed: Iterable[str] = itertools.repeat("")
) -> list[tuple[Object | None, str]]:
    """What the API server would store of each, or its refusal.

    Args:
        changed: names of existing objects that get these specs; empty for an object that is created.
    """

    def offer(body: Object, name: str) -> tuple[Object | None, str]:
        try:
            if not name:
                return api.create(body, namespace, DRY), ""
            path = api.path(body["kind"], namespace, name) + DRY
            return api.call("PATCH", path, {"spec": body["spec"]}, "application/merge-patch+json"), ""
        except Refusal as refusal:
            assert refusal.status in (400, 403, 422), f"{refusal.status}: {refusal}\n{body}"
            return None, str(refusal)

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(offer, bodies, changed))


def fresh(body: Object, namespace: str) -> Object:
    """An object of the memory world as the operator sent it."""
    kept = ("name", "labels", "annotations")
    metadata = {key: value for key, value in body["metadata"].items() if key in kept}
    owners = body["metadata"].get("ownerReferences", [])
    sent = {key: value for key, value in body.items() if key != "status"}
    if body["kind"] == "Pod":
        sent["spec"] = {key: value for key, value in body["spec"].items() if key != "nodeName"}
    if body["kind"] == "Event":
        sent["involvedObject"] = {**body["involvedObject"], "namespace": namespace}
    return {**sent, "metadata": {**metadata, "namespace": namespace, "ownerReferences": owners}}


def judged(api: Api, bodies: Iterable[Object]) -> list[Object]:
    """What the API server accepts, with its defaults; its verdicts are those of the CEL library, by a field's name."""
    stored = []
    for body, (taken, refusal) in zip(bodies, offered(api, bodies, "default"), strict=True):
        assert bool(refusal) == bool(found := faults(body)), f"{refusal!r}, in process {found}: {body}"
        assert taken or FIELD.search(refusal), f"names no field: {refusal}\n{body}"
        stored += [taken] if taken else []
    return stored


def existing(row: Row) -> str:
    """Name of the object that the row changes: one for all rows that begin alike; empty if it creates one."""
    return f"e{sum(json.dumps(row.before).encode())}" if row.before else ""


def is_wrong(section: str, row: Row, refusal: str) -> bool:
    """Whether a verdict is another than the table says. Pods, not specs, of `refused_in_pods` are refused."""
    if section in ("refused", "refused_changes"):
        return not (row.field in refusal and row.says in refusal)
    return bool(refusal)


def test_the_api_server_judges_every_row_as_the_table_says(api: Api) -> None:
    sections = ("refused", "refused_changes", "taken", "taken_changes", "refused_in_pods")
    table = [(section, row) for section in sections for row in rows(section)]
    begun = {existing(row): row.before for _, row in table if row.before}
    for name, body in begun.items():
        api.create({**body, "metadata": {"name": name}}, "default")
    answers = offered(api, [row.body for _, row in table], "default", [existing(row) for _, row in table])
    for name, body in begun.items():
        api.delete(body["kind"], "default", name)
    verdicts = zip(table, answers, strict=True)
    assert not [f"{each[1]}: {refusal!r}" for each, (_, refusal) in verdicts if is_wrong(*each, refusal)]


@pytest.mark.parametrize("part", PARTS)
def test_a_spec_is_refused_by_a_field_or_its_objects_are_taken(api: Api, bench: Bench, part: str) -> None:
    stored = judged(api, drawn(part, share=10))
    assert len(stored) > 10 or "broken" in part
    # The memory world makes a uid of the name, and labels have its first four characters.
    named = [{**body, "metadata": {"name": f"g{index:03}"}} for index, body in enumerate(stored)]
    objects = made([HOST, *named])
    mine = [each for each in objects if each["metadata"]["name"].partition("-")[0] != "host"]
    mine = [each for each in mine if each["kind"] != "Node"]
    plans = [each for each in mine if each["kind"] in ("TrainingRun", "LearnerUnit")]
    assert [each for each in plans if each.get("status", {}).get("observedGeneration") != 1] == []
    kinds: Counter[str] = Counter()
    bodies = [fresh(each, bench.namespace) for each in mine]
    for body, (_, refusal) in zip(bodies, offered(api, bodies, bench.namespace), strict=True):
        kinds[body["kind"]] += 1
        # The pods of a damaged spec may be refused: the condition ObjectRefused tells it.
        may = "broken" in part and body["kind"] in ("Pod", "StatefulSet")
        assert not refusal or may or ABSENT.search(refusal), f"{body['kind']}: {refusal}\n{body}"
    assert kinds["Pod"] > 0 or "broken" in part


@pytest.mark.parametrize("row", rows("refused_in_pods"), ids=str)
def test_pods_that_kubernetes_refuses_are_refused_with_a_reason(api: Api, bench: Bench, row: Row) -> None:
    pods = [each for each in made([row.body]) if each["kind"] in ("Pod", "StatefulSet")]
    answers = offered(api, [fresh(each, bench.namespace) for each in pods], bench.namespace)
    refusals = {refusal for _, refusal in answers}
    assert any(row.says in refusal for refusal in refusals), refusals


def test_an_integer_with_a_decimal_point_is_accepted_or_refused_by_a_field(api: Api) -> None:
    """Rules of a whole spec read numbers of its parts, and such a number is none to CEL."""
    spec = TWO_HOSTS.model_dump(mode="json", by_alias=True, exclude_none=True)
    size = {"layers": 3, "width": 64, "heads": 4, "kvHeads": 2, "hidden": 128}
    unit = {"apiVersion": RUN["apiVersion"], "kind": "LearnerUnit", "metadata": {"name": "u"}, "spec": spec}
    damaged = [
        patched(body, {path: 2.0})
        for body in (RUN, patched(RUN, {"spec.model": {"dimensions": size}}), unit)
        for path, schema in FIELDS[body["kind"]]
        if schema.get("type") == "integer"
    ]
    for body, (_, refusal) in zip(damaged, offered(api, damaged, "default"), strict=True):
        assert not refusal or FIELD.search(refusal), f"names no field: {refusal}\n{body}"
