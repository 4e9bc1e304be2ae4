"""The network policies and their page name every port of the pods that the operator makes, and no other port. Whom they
admit is tested where they are enforced, in tests/control/test_control_networkpolicies.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from pod_kinds import kinds

from atoll_operator.api.group import EVALUATOR, LEARNER, SYNCER, Object

ROOT = Path(__file__).resolve().parents[2]
POLICIES = list(yaml.safe_load_all((ROOT / "manifests" / "networkpolicies.yaml").read_text()))


def pods() -> dict[str, Object]:
    """One pod of each component. The learner is of a unit of several slices, which has the most ports."""
    return kinds(slices=2)


def listens(pod: Object) -> set[int]:
    return {port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}


@pytest.mark.parametrize("component", [SYNCER, EVALUATOR, LEARNER])
def test_a_policy_opens_the_ports_on_which_a_pod_listens(component: str) -> None:
    pod = pods()[component]
    labels, specs = pod["metadata"]["labels"].items(), [each["spec"] for each in POLICIES]
    (policy,) = (each for each in specs if each["podSelector"]["matchLabels"].items() <= labels)
    assert policy["policyTypes"] == ["Ingress"]
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == listens(pod)


def test_the_page_names_every_port_and_who_listens_there() -> None:
    told: dict[str, set[int]] = {SYNCER: set(), EVALUATOR: set(), LEARNER: set()}
    rows = re.findall(r"^\| ([\d, ]+) \| (.*?) \|", (ROOT / "docs" / "network.md").read_text(), re.M)
    for ports, owners in rows:
        for component in told:
            if component in owners:
                told[component] |= {int(port) for port in ports.split(",")}
    assert told == {component: listens(pod) for component, pod in pods().items()}
