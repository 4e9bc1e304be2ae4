"""The informer cache: whatever the order of events, answers and lists, it ends in the newest state."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_operator.kube.cache import Cache, Key, Object, without_managed_fields

KEY = Key("Pod", "n", "a")


def body(uid: str, version: int, name: str = "a", owner: str = "", **more: Any) -> Object:
    references = [{"uid": owner, "controller": True}] if owner else []
    metadata = {"name": name, "namespace": "n", "uid": uid, "resourceVersion": str(version)}
    return {"metadata": {**metadata, "ownerReferences": references}, **more}


def empty() -> Cache:
    return Cache(
        project={"Pod": lambda body, old: (body.get("phase"), old)},
        indices={"node": lambda kind, body: body.get("node"), "owner": lambda kind, body: body.get("unit")},
    )


def uid_of(cache: Cache) -> str | None:
    entry = cache.get(KEY)
    return None if entry is None else entry.uid


def test_an_older_state_is_ignored_and_a_newer_one_tells_what_was_before() -> None:
    cache = empty()
    added = cache.put("Pod", body("u", 3, phase="Pending"))
    assert added is not None and added.old is None and added.new is not None
    changed = cache.put("Pod", body("u", 5, phase="Running"))
    assert changed is not None and changed.old is added.new
    assert cache.put("Pod", body("u", 5, phase="Running")) is None, "our own write, told by the watch"
    assert cache.put("Pod", body("u", 4, phase="Failed")) is None
    entry = cache.get(KEY)
    assert entry is not None and entry.value == ("Running", ("Pending", None))
    assert cache.delete(KEY, "u", 4) is None and cache.get(KEY) is entry, "its label was put back since"
    replaced = cache.put("Pod", body("v", 9))
    assert replaced is not None and replaced.old is entry and replaced.new is not None
    assert replaced.new.value == (None, None), "a projection sees its own object's past alone"


def test_a_list_deletes_what_it_lacks_unless_that_is_newer() -> None:
    cache = empty()
    for name, version in (("a", 5), ("b", 9), ("c", 4)):
        cache.put("Pod", body(name, version, name))
    present = {Key("Pod", "n", "c")}
    assert cache.prune(cache.keys("Pod", "elsewhere"), present, 7) == []
    assert [change.key.name for change in cache.prune(cache.keys("Pod", "n"), present, 7)] == ["a"]
    assert [key.name for key in cache.keys("Pod")] == ["b", "c"]
    assert cache.put("Pod", body("a", 6)) is None


def test_the_mark_of_a_version_lasts_until_the_object_has_another_one() -> None:
    cache, answer = empty(), body("u", 3, owner="run")

    def mark() -> str | None:
        entry = cache.get(KEY)
        return None if entry is None else entry.mark

    cache.put("Pod", answer)  # the watch told of our write before the answer came
    cache.mark("Pod", answer, "applied")
    assert mark() == "applied"
    cache.put("Pod", body("u", 2))
    assert mark() == "applied"
    cache.put("Pod", body("u", 4))
    assert mark() == ""
    cache.mark("Pod", answer, "late")
    assert mark() == ""


def test_managed_fields_are_dropped_and_the_body_of_the_event_is_not_changed() -> None:
    event = {"metadata": {"name": "a", "managedFields": [1]}, "spec": {}}
    assert without_managed_fields(event) == {"metadata": {"name": "a"}, "spec": {}}
    assert event["metadata"]["managedFields"] == [1]


def test_tombstones_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll_operator.kube.cache.TOMBSTONES", 2)
    cache = empty()
    for uid in ("u", "v", "w"):
        cache.delete(KEY, uid)
    assert cache.put("Pod", body("v", 9)) is None and cache.put("Pod", body("u", 9)) is not None


@given(data=st.data())
def test_any_order_of_events_and_lists_ends_in_the_newest_state(data: st.DataObject) -> None:
    """Objects of one name live one after the other; each state and each deletion has a version of its own."""
    history: list[tuple[str, int, bool]] = []
    """Uid, version, and whether the object was deleted at that version."""
    for uid in ("u1", "u2", "u3"):
        for _ in range(data.draw(st.integers(1, 3))):
            history.append((uid, len(history) + 1, False))
        history.append((uid, len(history) + 1, True))
    if data.draw(st.booleans()):
        history.pop()
    last = history[-1]
    lists = data.draw(st.lists(st.integers(1, len(history)), max_size=4))
    acts: list[Any] = [*history, *(("list", version, None) for version in (*lists, len(history)))]
    cache = empty()
    gone: set[str] = set()
    for what, version, deleted in data.draw(st.permutations(acts)):
        if what == "list":
            uid, _, dead = history[version - 1]
            if dead:
                cache.prune(cache.keys("Pod"), set(), version)
            else:
                cache.put("Pod", body(uid, version))
                cache.prune(cache.keys("Pod"), {KEY}, version)
        elif deleted:
            cache.delete(KEY, what)
            gone.add(what)
        else:
            cache.put("Pod", body(what, version))
        assert uid_of(cache) not in gone, "a deleted uid never comes back"
    entry = cache.get(KEY)
    assert (entry is None) if last[2] else (entry is not None and entry.uid == last[0])
    if entry is not None:
        assert entry.resource_version == last[1]
