"""Volumes that a run adds: judged by the rules of its definition, against the pods that the plans make."""

from __future__ import annotations

import copy
from pathlib import PurePosixPath
from typing import Any

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
NAMES = {volume["name"] for pod in PODS for volume in pod["volumes"]}
NAMES |= {claim["metadata"]["name"] for claim in SYNCER["volumeClaimTemplates"]}
TAKEN = {PurePosixPath(mount["mountPath"]) for pod in PODS for mount in pod["containers"][0]["volumeMounts"]}
TAKEN |= {PurePosixPath(path) for path in (TERMINATION_LOG, "/proc", "/sys")}


def refusals(template: dict[str, Any], **data: str) -> list[str]:
    run = copy.deepcopy(RUN)
    run["spec"] |= {"podTemplate": template, "data": RUN["spec"]["data"] | data}
    return faults(run)


def mounted(path: str) -> dict[str, Any]:
    volume, mount = {"name": "v", "emptyDir": {}}, {"name": "v", "mountPath": path}
    return {"volumes": [volume], "volumeMounts": [mount]}


def test_names_and_paths_of_the_operators_own_volumes_are_refused() -> None:
    for name in NAMES:
        (line,) = refusals({"volumes": [{"name": name, "emptyDir": {}}]})
        place = f"spec.podTemplate.volumes[0].name: {name!r}"
        assert line.startswith(f"{place}: must not be a volume of the operator")
    for path in TAKEN:
        assert all(refusals(mounted(where)) for where in (str(path), f"{path}/below", str(path.parent))), path


PARTS = {part for path in TAKEN for part in path.parts[1:]} | {"a", "atoll2", "a b", ".a", ".", "..", ""}
PATHS = st.builds(
    lambda parts, first, last: first + "/".join(parts) + last,
    st.lists(st.sampled_from(sorted(PARTS)), max_size=5),
    st.sampled_from(["/", "/", "/", ""]),
    st.sampled_from(["", "", "", "/", ":"]),
)


@settings(max_examples=200, derandomize=True)
@given(PATHS)
@example("/etc/atoll")
@example("/dev/shm")
def test_a_mount_is_accepted_exactly_where_it_is_neither_above_nor_below_one_of_the_operators(
    text: str,
) -> None:
    path = PurePosixPath(text)
    plain = path.root == "/" and text == str(path) != "/" and ".." not in path.parts and ":" not in text
    beside = not any(path.is_relative_to(ours) or ours.is_relative_to(path) for ours in TAKEN)
    found = refusals(mounted(text))
    assert (found == []) == (plain and beside), (text, found)
    assert all("mountPath" in line for line in found)


def test_data_may_lie_in_a_file_that_every_pod_has_and_in_no_other() -> None:
    assert refusals(mounted("/mnt/corpus"), uri="file:///mnt/corpus/tokens") == []
    for template, uri in ((mounted("/mnt/corpus"), "file:///mnt/corpus2"), ({}, "file:///mnt/corpus")):
        (line,) = refusals(template, uri=uri)
        assert line.startswith(f"spec.data.uri: {uri} must lie below a mountPath")


def test_unit_is_outdated_while_it_has_another_claim_than_its_run() -> None:
    def template(claim: str) -> dict[str, Any]:
        return {"volumes": [{"name": "corpus", "persistentVolumeClaim": {"claimName": claim}}]}

    scene = RunScene({"a": 2}, podTemplate=template("old"))
    scene.step()
    assert scene.plan().status.units_updated == 2
    assert scene.change(podTemplate=template("new")).plan().status.units_updated == 0
