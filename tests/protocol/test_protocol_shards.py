"""The syncer as processes on real TLS sockets: a shard is lost, all are killed at random, another number goes on."""

from __future__ import annotations

import logging
import math
import os
import random
import signal
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from protocol_parties import networks

from atoll_runtime.checkpoint import Cut, GlobalStore
from atoll_runtime.checkpoint.bucket import TIMEOUT
from atoll_runtime.contract import EXIT_OK, CheckpointSpec, SyncerStatus, TargetSpec, identity
from atoll_runtime.model import describe
from atoll_runtime.protocol.fragments import build_layout
from atoll_runtime.replay import replay
from atoll_runtime.transport.messages import Stop

pytestmark = pytest.mark.timeout(900)


def told(syncer: Any) -> SyncerStatus:
    """What the shard says; nothing done yet, where nobody answers."""
    return syncer.status() or SyncerStatus(run_uid="", phase="Starting")


def rounds(syncer: Any) -> float:
    """Merges of this shard."""
    return float(syncer.figure("rounds_total"))


def finished(shards: list[Any], eventually: Any) -> list[SyncerStatus]:
    """What each shard says at its end. Its ledger balances."""
    ends = [eventually(lambda each=each: (s := told(each)).phase == "Finished" and s, 300) for each in shards]
    for end in ends:
        assert_balanced(end)
    return ends


def assert_balanced(status: SyncerStatus) -> None:
    for name, account in status.ledger.items():
        fates = account.merged + sum(account.discarded.values()) + account.in_flight
        assert account.trained == fates, (name, account)


def assert_learned(cut: Cut, error: float) -> None:
    """The units pull every weight towards 1."""
    theta = np.concatenate([tensor.ravel() for tensor in cut.theta.values()])
    assert np.mean((theta - 1.0) ** 2) < error


def test_a_lost_shard_stalls_its_own_tensors_alone_and_a_finished_run_goes_on_in_three_shards(
    make_run: Any,
    authority: Any,
    certificate: Any,
    syncer: Any,
    numpy_unit: Any,
    eventually: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = make_run(shards=2, target=TargetSpec(global_steps=320))
    # They connect before the shards are there, and go on trying. None steps before every shard has answered, as in the
    # pods, so that none misses the first rounds.
    a, b = (numpy_unit(run, name, until=0).start() for name in "ab")
    shards = [syncer(run, s) for s in (0, 1)]
    eventually(lambda: a.client.answered and b.client.answered, 120)
    width = a.layout.width

    def let_on(steps: float) -> None:
        """So many from now, and no further: the run is not over, however long this thread has to wait."""
        a.until = b.until = eventually(lambda: shards[0].figure("global_step")) + steps

    def newest(s: int) -> int:
        """Version that `a` has of any tensor of the shard."""
        return max(version for p, version in dict(a.received).items() if p // width == s)

    a.until = b.until = 40
    eventually(lambda: all(rounds(each) >= 12 for each in shards), 120)
    assert shards[0].plain("/readyz").startswith("Running")

    # A foreign authority is refused by TLS, a certificate of another unit by the syncer.
    outside = authority("foreign").issue("c", identity("default", "walk", "unit", "c"))
    with caplog.at_level(logging.WARNING):
        foreign = numpy_unit(run, "c", networks(run, outside)).start()
        eventually(lambda: "TLS refused" in caplog.text)
    impostor = numpy_unit(run, "a", networks(run, certificate("d"))).start()
    assert "unit/d, not" in eventually(impostor.client.last_word).reason
    assert foreign.client.last_word() is None and foreign.contributed == 0
    foreign.halt()

    # A newer incarnation takes the place of the older one at once.
    older, a = a, numpy_unit(run, "a", incarnation=2, until=40).start()
    assert eventually(older.client.last_word).incarnation == 2
    welcome = a.client.welcome(50)
    assert welcome is not None and welcome.cursor > 0

    let_on(40)
    assert shards[1].end(signal.SIGKILL) == -signal.SIGKILL
    killed = rounds(shards[0])
    let_on(40)
    eventually(lambda: rounds(shards[0]) >= killed + 12)  # by now is taken what had come before the kill
    stalled, step, held = rounds(shards[0]), a.loop.step, [newest(s) for s in (0, 1)]
    let_on(40)
    eventually(lambda: rounds(shards[0]) >= stalled + 12)
    eventually(lambda: a.loop.step > step and newest(0) > held[0])
    assert newest(1) == held[1]
    report = told(shards[0])
    assert report.down.startswith("shard 1: no session with shard 0 since 2"), (
        "the operator asks shard 0 alone"
    )
    assert report.global_step < shards[0].figure("global_step"), "the model is where shard 1 is"

    shards[1].start()
    let_on(math.inf)
    eventually(lambda: told(shards[1]).restarts == 1)
    eventually(
        lambda: abs(shards[0].figure("global_step") - told(shards[1]).global_step) <= 2 * run.outer.interval
    )
    eventually(lambda: told(shards[0]).down == "" and told(shards[0]).restarts == 1)
    eventually(lambda: a.stopped and b.stopped, 120)
    ends = finished(shards, eventually)
    assert {end.final_checkpoint for end in ends} == {f"{run.checkpoint.uri}/global/320"}
    assert [end.global_step for end in ends] == [320] * 2
    assert ends[0].units["a"].incarnation == 2 and ends[0].units["a"].contributions > 0
    assert ends[0].real_interval > 2.5  # H is 4: it must not collapse; on a loaded machine it is longer
    half = 2 * max(fragment.size for fragment in a.layout.fragments)
    assert ends[0].bytes_in >= half and ends[0].bytes_out >= half
    cut = GlobalStore(run.checkpoint.uri).load(320)
    assert cut.shards == 2 and len(cut.versions) == 2 * width
    assert cut.meta["model"] and cut.meta["fingerprint"] == a.layout.fingerprint
    assert_learned(cut, 0.05)

    # A unit that comes late, or a syncer that starts again, finds the run finished.
    for each in shards:
        each.end(signal.SIGTERM)
        each.start()
    late = numpy_unit(run, "a", incarnation=3).start()
    assert eventually(late.client.last_word) == Stop(320)
    finished(shards, eventually)
    assert [each.end(signal.SIGTERM) for each in shards] == [0, 0]
    assert list((shards[0].folder / "volume/tape").iterdir())

    more = make_run(shards=3, target=TargetSpec(global_steps=380))
    again = [syncer(more, s) for s in range(3)]
    units = [numpy_unit(more, name, incarnation=4) for name in "ab"]
    for unit in units:
        unit.hold_nothing()
        unit.start()
    eventually(lambda: all(unit.stopped for unit in units), 120)
    ends = finished(again, eventually)
    assert [end.global_step for end in ends] == [380] * 3
    assert all(end.tokens > min(e.tokens for e in ends) // 2 > 0 for end in ends)
    last = GlobalStore(run.checkpoint.uri).load(380)
    assert last.shards == 3 and last.theta.keys() == cut.theta.keys()
    assert_learned(last, 0.02)


def test_a_syncer_that_is_asked_to_end_waits_for_no_bucket(
    make_run: Any, syncer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("localhost", 0)) as bucket:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://localhost:{bucket.getsockname()[1]}")
        run = make_run(checkpoint=CheckpointSpec(uri="gs://silent/run"))
        process = syncer(run)
        bucket.settimeout(60)
        call, _ = bucket.accept()  # it is asked for the newest checkpoint, and says nothing
        with call:
            asked = time.monotonic()
            assert process.end(signal.SIGTERM) == EXIT_OK
            assert time.monotonic() - asked < TIMEOUT / 2


STORM_SECONDS = 20.0
STEP_SECONDS = 0.04
STEPS = 450
"""Of the run: without any fault it lasts almost as long as the storm, which finds it at work until its end."""


def test_whatever_is_killed_no_merge_is_lost_and_the_tape_gives_the_final_model_bit_for_bit(
    make_run: Any, syncer: Any, learner_process: Any, eventually: Any, tmp_path: Path
) -> None:
    seed = int(os.environ.get("ATOLL_SEED", random.SystemRandom().randrange(10**6)))
    print(f"ATOLL_SEED={seed}")
    chance = random.Random(seed)
    run = make_run(
        shards=2,
        target=TargetSpec(global_steps=STEPS),
        tape="Contributions",
        checkpoint=CheckpointSpec(uri=f"file://{tmp_path}/bucket", interval_steps=40, keep=2),
    )
    shards = [syncer(run, s) for s in (0, 1)]

    def learner(name: str, incarnation: int = 1) -> Any:
        return learner_process(run, name, incarnation, STEP_SECONDS)

    learners = {name: learner(name) for name in "abc"}
    eventually(lambda: all(rounds(each) >= 4 for each in shards), 120)

    seen = [0.0, 0.0]
    end = time.monotonic() + STORM_SECONDS
    kills = {"syncer": 0, "learner": 0, "pause": 0}
    while time.monotonic() < end:
        what = chance.choice(["syncer", "learner", "learner", "pause"])
        kills[what] += 1
        if what == "syncer":
            s = chance.randrange(2)
            seen[s] = max(seen[s], shards[s].figure("global_step"))
            shards[s].end(signal.SIGKILL)
            shards[s].start()
        elif what == "learner":
            name = chance.choice("abc")
            learners[name].kill()
            learners[name] = learner(name, learners[name].incarnation + 1)
        else:
            name = chance.choice("abc")
            learners[name].process.send_signal(signal.SIGSTOP)
            wait_until(time.monotonic() + chance.uniform(0.1, 1.0))
            learners[name].process.send_signal(signal.SIGCONT)
        wait_until(time.monotonic() + chance.uniform(0.2, 2.0))

    ends = finished(shards, eventually)
    for s, status in enumerate(ends):
        assert status.global_step >= max(seen[s], STEPS)
        assert all(account.in_flight == 0 for account in status.ledger.values())
    assert all(eventually(lambda p=each.process: p.poll() is not None or None) for each in learners.values())
    assert [each.process.wait(50) for each in learners.values()] == [0, 0, 0]
    for each in shards:
        assert each.end(signal.SIGTERM) == 0

    step = int(ends[0].final_checkpoint.rpartition("/")[2])
    cut = GlobalStore(run.checkpoint.uri).load(step)
    layout = build_layout(describe(run.model), run.outer.fragments, 2)
    for s, each in enumerate(shards):
        found = replay(each.folder / "volume/tape")
        assert found.difference is None and found.merges > 0
        own = layout.shard(s)
        for p, held in enumerate(found.held):
            assert held.version == cut.versions[s * layout.width + p]
            assert np.array_equal(held.theta, own.flatten(cut.theta, p)), (s, p)
    print(f"storm of {STORM_SECONDS:.0f} s: {kills}, merges {[end.rounds for end in ends]}")


def wait_until(moment: float) -> None:
    """The storm's own pace: faults come at these moments, whatever the parties do."""
    time.sleep(max(0.0, moment - time.monotonic()))
