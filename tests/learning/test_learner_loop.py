"""The inner loop on one host: arrivals, counters, pulls, endings, bad losses; and where a unit is seeded."""

import threading
import time
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from atoll_runtime.checkpoint import Cut, GlobalStore
from atoll_runtime.contract import Dimensions, InnerSpec, ModelSpec, OuterSpec, TargetSpec, VersionMismatch
from atoll_runtime.data import Prefetch
from atoll_runtime.learner import seed
from atoll_runtime.learner.fragments import Fragments
from atoll_runtime.learner.host_consensus import Agreement
from atoll_runtime.learner.inner import Inner
from atoll_runtime.learner.island import FencedOff, _refusal, _welcome
from atoll_runtime.learner.loop import Loop, LossNotFinite, host_body
from atoll_runtime.learner.mesh import span
from atoll_runtime.learner.proposal import NOTHING, Ending, StepProposal
from atoll_runtime.learner.schedule import REWARM, learning_rate
from atoll_runtime.learner.snapshot import Snapshots, host_part
from atoll_runtime.learner.start import Start
from atoll_runtime.learner.transfers import Arrival
from atoll_runtime.model import describe, initial
from atoll_runtime.process import Terminal
from atoll_runtime.protocol.communication import Communication
from atoll_runtime.protocol.fragments import build_layout
from atoll_runtime.protocol.identifiers import NO_CUT, CutId, RoundId
from atoll_runtime.protocol.progress import Contribution
from atoll_runtime.protocol.shardview import PullRequest
from atoll_runtime.simulate.blank import run_contract, unit_contract
from atoll_runtime.transport import codecs
from atoll_runtime.transport.messages import Fenced, Refused, Stop

pytestmark = pytest.mark.timeout(300)  # 15 s alone, most of it the compiler's
SPEC = ModelSpec(dimensions=Dimensions(layers=2, width=16, heads=2, kv_heads=1, hidden=32))
BATCH, LENGTH, FRAGMENTS = 4, 16, 4
TOKENS = BATCH * LENGTH
RUN = run_contract(
    model=SPEC,
    inner=InnerSpec(warmup_steps=5, learning_rate=1e-2),
    outer=OuterSpec(fragments=FRAGMENTS, interval=FRAGMENTS, codec="float32"),
)


@dataclass
class Script:
    """Stands for the client. By inner step: what has come when the loop asks for the n-th time."""

    arrivals: dict[int, dict[int, Arrival]] = field(default_factory=dict)
    here: dict[int, Arrival] = field(default_factory=dict)
    rounds: dict[int, list[PullRequest]] = field(default_factory=dict)
    stop_at: int = 10
    failure: Fenced | Refused | None = None
    asked: int = 0
    reports: list[tuple] = field(default_factory=list)
    sent: list[tuple[Contribution, int]] = field(default_factory=list)
    """Contributions, each with the data position at which it was sent."""
    cuts: dict[int, CutId] = field(default_factory=dict)
    open_rounds: dict[int, PullRequest] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)

    def check(self):
        """No thread of a link has ended."""

    def fetching(self):
        return {}

    def arrived(self):
        self.asked += 1
        self.here.update(self.arrivals.pop(self.asked, {}))
        return dict(self.here)

    def pulls(self):
        self.open_rounds.update({ask.round.fragment: ask for ask in self.rounds.get(self.asked, [])})
        return dict(self.open_rounds)

    communication = Communication("float32")

    def contribute(self, number, ask, codec, body, offer, step, cursor):
        del self.open_rounds[number]
        self.sent.append((offer, cursor))

    def adopt(self, number, arrival):
        assert self.here.pop(number) is arrival

    def cut(self):
        return self.cuts.get(self.asked, NO_CUT)

    def merged(self):
        return max((tokens for asked, tokens in self.tokens.items() if asked <= self.asked), default=0)

    def report(self, *figures):
        self.reports.append(figures)

    def last_word(self):
        return (self.failure or Stop(100)) if self.asked >= self.stop_at else None


@pytest.fixture(scope="module")
def mesh():
    return span(jax.devices())


@pytest.fixture(scope="module")
def layout():
    return build_layout(describe(SPEC), FRAGMENTS)


@pytest.fixture(scope="module")
def parts(mesh, layout):
    """Inner and fragments, compiled once; each test starts them again from the first values."""
    inner = Inner(mesh, SPEC, RUN.inner, initial(SPEC), BATCH, LENGTH)
    first = {name: np.asarray(value) for name, value in inner.theta.items()}
    return inner, first, Fragments(mesh, layout, inner.theta)


@pytest.fixture
def saved():
    """Snapshots that loops have completed."""
    return []


@pytest.fixture
def make_loop(mesh, layout, parts, saved):
    """A loop over a script; its batches hold their own cursor as the token."""
    inner, first, fragments = parts
    inner.theta = {name: jax.device_put(value, inner.theta[name].sharding) for name, value in first.items()}
    for number in range(FRAGMENTS):
        part = np.zeros(fragments.padded[number], np.float32)
        part[: layout.fragments[number].size] = layout.flatten(first, number)
        inner.theta = fragments.receive(inner.theta, number, part)
    loops = []

    def make(script, run=RUN, **start):
        begin = Start(**{"versions": (0,) * FRAGMENTS, "targets": (0,) * FRAGMENTS, **start})
        batches = Prefetch(
            lambda at: np.full(LENGTH + 1, at % 256, np.int32), begin.cursor, BATCH, inner.rows
        )
        snapshots = Snapshots(fragments.bounds, begin.targets, saved.append)
        loop = Loop(
            run, inner, fragments, script, Agreement(mesh), batches, begin, threading.Event(), snapshots
        )
        loops.append(loop)
        return loop

    yield make
    for loop in loops:
        loop.batches.close()


def pull(fragment, step=1, least=0):
    return PullRequest(RoundId(step, fragment, 0), least)


def test_the_loop_trains_without_a_syncer_and_reports_each_step(make_loop):
    script = Script(stop_at=8)
    loop = make_loop(script, inner_step=40)
    assert loop.until_end() is Ending.STOPPED
    assert loop.step == 47
    steps, sums, tokens, losses, seconds = zip(*script.reports, strict=True)
    assert steps == (42, 43, 44, 45, 46, 47), "the first step's time is the compiler's"
    assert sums == (2, 3, 4, 5, 6, 7) and tokens == tuple(n * TOKENS for n in sums), "but the step counts"
    assert all(np.isfinite(losses))
    assert min(seconds) > 0


@pytest.mark.parametrize("codec", ["float32", "bf16", "int8", "int4"])
def test_the_devices_encode_the_bits_that_the_network_has(mesh, layout, parts, codec):
    inner = parts[0]
    fragments = Fragments(mesh, layout, inner.theta)
    chance = np.random.default_rng(0)
    moved = {
        name: value + chance.standard_normal(value.shape, np.float32) * 1e-3
        for name, value in inner.theta.items()
    }
    for number in range(len(layout.fragments)):
        exact = host_part(fragments.extract(moved, number, "float32"))
        body = host_body(fragments.extract(moved, number, codec))
        assert bytes(body) == bytes(codecs.pack(exact, codec))


def test_another_codec_is_used_once_it_is_compiled_and_nobody_waits_for_that(mesh, layout, parts):
    encoders = Fragments(mesh, layout, parts[0].theta).encoders
    assert encoders.choose("bf16") == "bf16"
    assert encoders.choose("int4") == "bf16"
    deadline = time.monotonic() + 60
    while encoders.choose("int4") == "bf16":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert encoders.choose("int4") == "int4"
    assert encoders.choose("bf16") == "bf16", "its programs are kept"


@pytest.mark.parametrize(
    ("number", "asked", "arrives", "least", "sent"),
    [
        pytest.param(2, 4, 4, 0, (3, 0, 3), id="with-an-arrival-against-the-anchor-before"),
        pytest.param(2, 3, 4, 7, (1, 7, 4), id="waits-for-a-newer-anchor"),
        pytest.param(3, 1, 20, 0, (1, 0, 1), id="before-the-first-step"),
    ],
)
def test_a_pull_is_answered_when_it_can_be(make_loop, parts, number, asked, arrives, least, sent):
    """`sent`: steps, anchor and batches of the contribution."""
    value = np.zeros(parts[2].padded[number], np.float32)
    script = Script(
        arrivals={arrives: {number: Arrival(7, value)}},
        rounds={asked: [pull(number, least=least)]},
        stop_at=8,
    )
    make_loop(script, cursor=400).until_end()
    steps, anchor, batches = sent
    [(offer, cursor)] = script.sent
    assert (offer.steps, offer.tokens, offer.anchor) == (steps, steps * TOKENS, anchor)
    assert cursor == 400 + batches * BATCH


@pytest.mark.parametrize(
    ("failure", "ending", "kind"),
    [
        (Fenced(3), Ending.FENCED, FencedOff),
        (Refused("another layout"), Ending.REFUSED, Terminal),
        (Refused("another protocol", version=True), Ending.MISMATCHED, VersionMismatch),
    ],
)
def test_a_syncer_that_refuses_ends_the_loop_and_the_other_hosts_of_the_unit_alike(
    make_loop, failure, ending, kind
):
    assert make_loop(Script(failure=failure, stop_at=3)).until_end() is ending
    unaware = Script()
    assert type(_refusal(ending, unaware)) is kind


@pytest.mark.parametrize(("meta", "word"), [({"machines": [{}]}, None), ({}, Stop(100)), ({}, Fenced(3))])
def test_a_unit_without_an_answer_trains_on_from_its_checkpoint_or_ends_as_it_was_told(meta, word):
    client = SimpleNamespace(welcome=lambda timeout: None, last_word=lambda: word)
    assert _welcome(client, unit_contract(), Cut(10, {}, {}, (10,), meta)) is None


def test_a_unit_that_a_peer_has_seeded_does_not_begin_its_data_anew_when_the_syncer_is_away():
    """On host 0, whose answer counts."""
    client = SimpleNamespace(welcome=lambda timeout: None, last_word=lambda: None)
    seeded = Cut(10, {}, {}, (10,), {"fingerprint": "f"})
    with pytest.raises(TimeoutError, match="where the data continues"):
        _welcome(client, unit_contract(), seeded)
    assert _welcome(client, unit_contract(host=1, hosts=2), seeded) is None


def test_a_termination_ends_the_loop_at_a_step(make_loop):
    loop = make_loop(Script(stop_at=1000))
    loop.terminated.set()
    assert loop.until_end() is Ending.TERMINATED


def test_a_loss_that_is_not_finite_is_terminal_and_is_not_contributed(make_loop, parts):
    poison = np.full(parts[2].padded[0], np.nan, np.float32)
    script = Script(arrivals={3: {0: Arrival(5, poison)}}, rounds={4: [pull(1)]}, stop_at=20)
    loop = make_loop(script)
    with pytest.raises(LossNotFinite, match="loss nan at inner step 3") as raised:
        loop.until_end()
    assert raised.value.reason == "LossNotFinite"
    assert not script.sent
    loop.inner._state = jax.jit(loop.inner._optimiser.init)(loop.inner.theta)


def test_a_unit_records_itself_for_a_cut_once_and_before_it_takes_what_came_after(make_loop, parts, saved):
    value = np.zeros(parts[2].padded[2], np.float32)
    cut = CutId(40, 40)
    script = Script(
        cuts={4: cut, 5: cut},
        arrivals={4: {2: Arrival(41, value)}},
        rounds={2: [pull(0)], 4: [pull(1)], 5: [pull(3)]},
        stop_at=12,
    )
    loop = make_loop(script)
    loop.until_end()
    assert [offer.cut for offer, _ in script.sent] == [NO_CUT, cut, cut]
    assert [offer.trained for offer, _ in script.sent] == [TOKENS, 3 * TOKENS, 4 * TOKENS]
    (snapshot,) = saved
    assert snapshot.cut == 40
    assert [capture.head.number for capture in snapshot.captures] == [0, 1, 2, 3]


def test_nothing_is_saved_for_a_cut_before_the_first_step(make_loop, saved):
    make_loop(Script(cuts={1: CutId(40, 40)}, stop_at=9)).until_end()
    assert not saved


def agree(*offers):
    rows = np.stack([offer.values(FRAGMENTS) for offer in offers])
    return offers[-1].agreed(rows.min(0), rows.max(0))


def versions(*held, lineage="", **fetching):
    """The proposal of a host with these versions of the first fragments, and with those that it fetches."""
    arrivals = {n: Arrival(version, np.zeros(1), lineage) for n, version in enumerate(held)}
    coming = dict(enumerate(held)) | {int(name[1:]): version for name, version in fetching.items()}
    return StepProposal(arrivals, {}, coming=coming)


def test_hosts_take_the_versions_that_all_have_and_need_the_newest_that_any_has_or_fetches():
    ours, theirs = versions(3, 8), versions(3, 4, 5)
    assert agree(theirs, ours).arrivals.keys() == agree(ours, theirs).arrivals.keys() == {0}
    assert agree(theirs, ours).contested == agree(ours, theirs).contested == {1: 8, 2: 5}
    assert agree(versions(3, f0=9), versions(3, 8)).contested == {0: 9, 1: 8}
    assert not agree(versions(3, f1=8), versions(3, 8)).contested, "it is on its way"
    assert not agree(versions(3, f1=8, f2=9), replace(versions(3, 8), coming={0: 3, 1: 8, 2: 9})).contested, (
        "a host may have more than it proposes, because an audit holds it back"
    )
    assert not agree(versions(3, lineage="old"), versions(3, lineage="new")).arrivals


def test_what_any_host_has_seen_wants_or_ends_with_and_the_least_that_is_done_count_for_all():
    theirs = StepProposal({}, {}, CutId(40, 40, True), NOTHING, Ending.FENCED, done=7)
    agreed = agree(theirs, StepProposal({}, {}, CutId(40, 40), 3, done=9))
    assert (agreed.cut, agreed.capture, agreed.ending, agreed.done) == (theirs.cut, 3, Ending.FENCED, 7)


COSINE = InnerSpec(learning_rate=1.0, warmup_steps=10, final_fraction=0.1)
CONSTANT = InnerSpec(learning_rate=1.0, warmup_steps=0, schedule="Constant")


@pytest.mark.parametrize(
    ("spec", "target", "step", "done", "rate"),
    [
        *((COSINE, 110, step, 0.0, rate) for step, rate in ((0, 0.1), (10, 1.0), (60, 0.55), (85, 0.232))),
        *((COSINE, 110, step, 0.0, 0.1) for step in (110, 111)),
        *((COSINE, target, 30, 0.5, 0.55) for target in (None, 110)),
        *((COSINE, target, 30, done, 0.1) for target in (None, 110) for done in (1.0, 1.1)),
        (COSINE, None, 90, 0.0, 1.0),  # nothing is merged yet
        (COSINE, 110, 60, 0.2, 0.55),  # of two targets the nearer one leads
        (COSINE, 110, 60, 0.75, 0.232),
        (CONSTANT, 100, 90, 0.9, 1.0),
    ],
)
def test_the_learning_rate_warms_up_falls_to_the_nearer_target_and_ends_at_its_fraction(
    spec, target, step, done, rate
):
    """A healed unit warms up again, for a few steps."""
    for since, healed, factor in ((10_000, False, 1.0), (0, True, 1 / REWARM), (REWARM - 1, True, 1.0)):
        assert learning_rate(spec, target, step, since, healed, done) == pytest.approx(
            factor * rate, abs=5e-4
        )


def rates_of(make_loop, monkeypatch, script, **start):
    """The rates of a loop whose run has a target of 1000 tokens alone, after the warm-up."""
    run = RUN.model_copy(update={"target": TargetSpec(tokens=1000)})
    loop, rates = make_loop(script, run, **start), []
    plain = loop.inner.step
    monkeypatch.setattr(
        loop.inner,
        "step",
        lambda tokens, rate: rates.append(rate / RUN.inner.learning_rate) or plain(tokens, rate),
    )
    loop.until_end()
    return rates


def test_a_run_with_a_target_in_tokens_alone_ends_at_its_final_rate(make_loop, monkeypatch):
    script = Script(tokens={3: 500, 5: 1000, 6: 1007}, stop_at=8)
    rates = rates_of(make_loop, monkeypatch, script, global_step=50)
    assert rates == pytest.approx([1, 1, 0.55, 0.55, 0.1, 0.1, 0.1])


def test_a_healed_unit_trains_at_the_rate_of_the_others_from_its_first_step_on(make_loop, monkeypatch):
    """What it was told when it began stands, whatever a shard that fell back says after that."""
    rates = rates_of(make_loop, monkeypatch, Script(tokens={2: 400}, stop_at=4), global_step=50, merged=500)
    assert rates == pytest.approx([0.55] * 3)


def make_cut(step, layout):
    theta = initial(SPEC)
    return Cut(
        step=step,
        theta=theta,
        momentum={name: np.zeros_like(value) for name, value in theta.items()},
        versions=(step,) * FRAGMENTS,
        meta={"fingerprint": layout.fingerprint},
    )


def test_a_seed_is_waited_for(tmp_path, mesh, layout):
    store = GlobalStore(f"file://{tmp_path}/run")
    late = threading.Timer(0.4, store.save, [make_cut(0, layout)])
    late.start()
    try:
        assert seed.find(store, layout, Agreement(mesh), deadline=30).cut.step == 0
    finally:
        late.join(30)


def test_a_seed_that_does_not_come_is_an_error_with_the_reason(tmp_path, mesh, layout):
    with pytest.raises(seed.SeedUnavailable, match=r"no complete checkpoint in 0.1 s: .* holds none yet"):
        seed.find(GlobalStore(f"file://{tmp_path}/run"), layout, Agreement(mesh), deadline=0.1)


def test_a_checkpoint_of_another_layout_is_terminal(tmp_path, mesh, layout):
    store = GlobalStore(f"file://{tmp_path}/run")
    store.save(make_cut(10, layout))
    with pytest.raises(Terminal, match="fragment layout") as raised:
        seed.find(store, build_layout(describe(SPEC), FRAGMENTS + 1), Agreement(mesh))
    assert raised.value.reason == "LayoutChanged"
