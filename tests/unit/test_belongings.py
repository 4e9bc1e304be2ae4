"""What the store knows of Services, ConfigMaps and Secrets, and of StatefulSets: there or not, and which version."""

from __future__ import annotations

from typing import Any

import pytest

from atoll_operator.kube.errors import Refused, Retry
from atoll_operator.kube.keys import Key, Kind, parent_key, sight_of
from atoll_operator.kube.ownership import check_owner
from atoll_operator.kube.urgency import News
from atoll_operator.reconcilers.store import Store

RUN, UNIT = Key("TrainingRun", "n", "r"), Key("LearnerUnit", "n", "r-p-0")
OF_RUN = {"atoll.dev/run": "r"}
OF_UNIT = {"atoll.dev/run": "r", "atoll.dev/unit": "r-p-0"}


def thing(version: int, uid: str = "a", owner: str = "run", **labels: str) -> dict[str, Any]:
    references = [{"controller": True, "uid": owner}] if owner else []
    return {
        "metadata": {
            "name": "x", "namespace": "n", "uid": uid, "resourceVersion": str(version), "labels": labels,
            "ownerReferences": references,
        }
    }  # fmt: skip


def test_that_something_is_there_is_no_news_and_that_it_changed_or_went_is() -> None:
    store, key = Store(), Key("Secret", "n", "x")
    assert store.sight(key) is None
    assert store.put("Secret", thing(3)) is News.NONE
    assert store.sight(key) == ("a", 3)
    assert store.put("Secret", thing(3)) is News.NONE  # our own write, told by the watch
    assert store.put("Secret", thing(5)) is News.CALM
    assert store.put("Secret", thing(4)) is News.NONE
    assert store.sight(key) == ("a", 5)
    assert store.drop("Secret", thing(6)) is News.CALM
    assert store.sight(key) is None


def test_an_answer_that_comes_after_the_end_of_its_object_does_not_bring_it_back() -> None:
    store = Store()
    store.drop("ConfigMap", thing(6))
    assert store.put("ConfigMap", thing(5)) is News.NONE
    assert store.sight(Key("ConfigMap", "n", "x")) is None


def test_the_end_of_an_object_does_not_take_its_successor_away() -> None:
    store = Store()
    store.put("Service", thing(3))
    store.put("Service", thing(9, uid="b"))
    assert store.drop("Service", thing(8)) is News.NONE
    assert store.sight(Key("Service", "n", "x")) == ("b", 9)


def test_a_list_that_lacks_an_object_has_its_owner_look() -> None:
    store = Store()
    store.put("Service", thing(3, **OF_UNIT))
    store.put("ConfigMap", thing(4, **OF_RUN))
    assert store.keep("Service", "elsewhere", set(), 7) == set()
    assert store.keep("Service", "n", set(), 2) == set()
    assert store.keep("Service", "n", set(), 7) == {UNIT}
    assert store.keep("ConfigMap", "", {("n", "x")}, 7) == set()
    assert store.sight(Key("ConfigMap", "n", "x")) == ("a", 4)


@pytest.mark.parametrize(
    ("kind", "labels", "parent"),
    [
        pytest.param("Service", OF_UNIT, UNIT, id="of-a-unit"),
        pytest.param("Service", OF_RUN, RUN, id="of-a-run"),
        pytest.param("Secret", OF_RUN, RUN, id="certificate"),
        pytest.param("Service", {}, None, id="of-others"),
        pytest.param("TrainingRun", OF_RUN, None, id="a-run-with-labels"),
    ],
)
def test_who_has_to_look_stands_in_the_labels(kind: Kind, labels: dict[str, str], parent: Key | None) -> None:
    assert parent_key(kind, thing(1, **labels)) == parent


def test_the_status_of_a_stateful_set_is_no_change_and_its_spec_is() -> None:
    body = thing(3)
    body["metadata"]["generation"] = 1
    later = thing(9)
    later["metadata"]["generation"] = 1
    assert sight_of("StatefulSet", body) == sight_of("StatefulSet", later)
    later["metadata"]["generation"] = 2
    assert sight_of("StatefulSet", body) != sight_of("StatefulSet", later)


@pytest.mark.parametrize(
    ("owner", "labels", "expected"),
    [
        pytest.param("", {}, Refused, id="of-nobody"),
        pytest.param("theirs", {}, Refused, id="of-others"),
        pytest.param("earlier", {"app.kubernetes.io/managed-by": "atoll"}, Retry, id="of-an-earlier-unit"),
    ],
)
def test_what_is_not_ours_is_named_with_what_to_do(
    owner: str, labels: dict[str, str], expected: type[Exception]
) -> None:
    owned = {"kind": "LearnerUnit", "uid": "mine"}
    with pytest.raises(expected, match="Service 'x'") as refusal:
        check_owner(thing(1, owner=owner, **labels), "Service", owned)
    assert expected is Retry or "delete it, or use another name for the LearnerUnit" in str(refusal.value)
    check_owner(thing(1, owner="mine"), "Service", owned)


def test_an_earlier_units_service_may_be_inherited_and_that_of_others_may_not() -> None:
    owned, ours = {"kind": "LearnerUnit", "uid": "mine"}, {"app.kubernetes.io/managed-by": "atoll"}
    check_owner(thing(1, owner="earlier", **ours), "Service", owned, inherit=True)
    for theirs in (thing(1, owner="theirs"), thing(1, owner="", **ours)):
        with pytest.raises(Refused):
            check_owner(theirs, "Service", owned, inherit=True)


def test_whose_a_service_is_is_known_without_a_request() -> None:
    store, key = Store(), Key("Service", "n", "x")
    assert store.controller(key) is None
    store.put("Service", thing(3, owner=""))
    assert store.controller(key) == ""
