"""Volumes that a run adds: judged by the rules of its definition, against the pods that the plans make."""

from __future__ import annotations

import copy
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from objects import RUN
from pod_kinds import kinds, workloads
from run_scene import RunScene

from atoll_cli.simulate.admission import faults
from atoll_runtime.contract import TERMINATION_LOG

SYNCER = workloads()["syncer"]["spec"]
PODS = [pod["spec"] for pod in kinds().values()]
"""One of each kind, with what the operator itself gives them."""
NAMES = sorted(
    {volume["name"] for pod in PODS for volume in pod["volumes"]}
    | {claim["metadata"]["name"] for claim in SYNCER["volumeClaimTemplates"]}
)
TAKEN = {PurePosixPath(mount["mountPath"]) for pod in PODS for mount in pod["containers"][0]["volumeMounts"]}
TAKEN |= {PurePosixPath(path) for path in (TERMINATION_LOG, "/proc", "/sys")}


def refusals(template: dict[str, Any], **data: str) -> list[str]:
    run = copy.deepcopy(RUN)
    run["spec"] |= {"podTemplate": template, "data": RUN["spec"]["data"] | data}
    return faults(run)


def mounted(path: str) -> dict[str, Any]:
    return {
        "volumes": [{"name": "v", "emptyDir": {}}],
        "volumeMounts": [{"name": "v", "mountPath": path}],
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_each_volume_that_the_operator_makes_is_refused(name: str) -> None:
    (line,) = refusals({"volumes": [{"name": name, "emptyDir": {}}]})
    assert line.startswith(
        f"spec.podTemplate.volumes[0].name: {name!r}: must not be a volume of the operator"
    )


PARTS = sorted(
    {part for path in TAKEN for part in path.parts[1:]} | {"a", "atoll2", "a b", ".a", ".", "..", ""}
)
PATHS = st.builds(
    lambda parts, first, last: first + "/".join(parts) + last,
    st.lists(st.sampled_from(PARTS), max_size=5),
    st.sampled_from(["/", "/", "/", ""]),
    st.sampled_from(["", "", "", "/", ":"]),
)


@settings(max_examples=200, derandomize=True)
@given(PATHS)
@example("/etc/atoll")
@example("/dev/shm")
def test_a_mount_is_taken_exactly_where_it_is_neither_above_nor_below_one_of_the_operators(text: str) -> None:
    path = PurePosixPath(text)
    plain = path.root == "/" and text == str(path) != "/" and ".." not in path.parts and ":" not in text
    beside = not any(path.is_relative_to(ours) or ours.is_relative_to(path) for ours in TAKEN)
    found = refusals(mounted(text))
    assert (found == []) == (plain and beside), (text, found)
    assert all("mountPath" in line for line in found)


@pytest.mark.parametrize("path", sorted(map(str, TAKEN)))
def test_where_the_operator_mounts_something_nothing_else_is_mounted(path: str) -> None:
    for where in (path, f"{path}/below", str(PurePosixPath(path).parent)):
        assert refusals(mounted(where)), where


def test_data_may_lie_in_a_file_that_every_pod_has_and_in_no_other() -> None:
    template = mounted("/mnt/corpus")
    assert refusals(template, uri="file:///mnt/corpus/tokens") == []
    (line,) = refusals(template, uri="file:///mnt/corpus2")
    assert line.startswith("spec.data.uri: file:///mnt/corpus2 must lie below a mountPath")
    (line,) = refusals({}, uri="file:///mnt/corpus")
    assert line.startswith("spec.data.uri: file:///mnt/corpus must lie below a mountPath")


def test_unit_is_outdated_while_it_has_another_claim_than_its_run() -> None:
    def template(claim: str) -> dict[str, Any]:
        return {"volumes": [{"name": "corpus", "persistentVolumeClaim": {"claimName": claim}}]}

    scene = RunScene({"a": 2}, podTemplate=template("old"))
    scene.step()
    assert scene.plan().status.units_updated == 2
    assert scene.change(podTemplate=template("new")).plan().status.units_updated == 0
