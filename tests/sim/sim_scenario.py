"""One schedule's constants, drawn from its seed: the run's shape, the network's behaviour, and the faults."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from atoll_runtime.contract import RunContract
from atoll_runtime.protocol.rules import Rules
from atoll_runtime.simulate.blank import run_contract

FAULTS = (
    "crash here",
    "crash here",
    "crash here",
    "crash shard",
    "lose volume",
    "kill unit",
    "kill unit",
    "replace unit",
    "hang unit",
    "break link",
    "break link",
    "cut off shard",
    "cut off unit",
    "part shards",
    "part shards",
    "change target",
    "suspend",
    "power",
    "power",
    "disk",
)
"""Kinds of fault, repeated by how often they should come. `here` is the shard that is working at that moment."""
LAST_FAULTS = (
    "crash here",
    "crash shard",
    "crash shard",
    "kill unit",
    "replace unit",
    "break link",
    "part shards",
    "change target",
    "change target",
    "suspend",
)
"""The same for faults that wait until a final cut has begun."""
LAST_MOMENTS = 200
"""These faults come within this many moments after that."""
MOMENTS = 1700
"""Faults come within this many moments. A moment is before a callback of any party or an operation of a disk."""

RARE = 0.1
"""Share of the schedules with each of: little memory, a slow unit, rare faults."""
RARE_FAULTS = ("crash loop", "crash loop", "freeze", "freeze", "full disk", "bucket away", "unit leaves")

LONG = 50
"""Global steps of a long run."""


@dataclass(frozen=True)
class Spell:
    """A time in which a link behaves differently."""

    since: float
    until: float
    share: float = 1.0
    """Share of its bandwidth that is left."""
    direction: str = "up down"
    delay: float = 0.0
    """Additional seconds, one way."""


@dataclass(frozen=True)
class Island:
    """A unit."""

    name: str
    hosts: int
    pace: float
    """Seconds of an inner step."""
    tokens: int
    """Of an inner step."""
    link: float = 0.0
    """Seconds of a transfer of one fragment, without the network's delay."""
    uneven: float = 1.0
    """How many times as long as on host 0 transfers take on the other hosts."""
    busy: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Period, first second, and duration of the times in which others use the link."""
    lie: str = ""
    """What is wrong with all of its contributions: their `tokens` or their `norm`."""
    distance: float = 0.0
    """Seconds of a message of the unit, one way, without the network's delay."""
    spells: tuple[Spell, ...] = ()
    """In order, without overlap."""

    def delay(self, now: float) -> float:
        """Seconds of a message, one way."""
        return self.distance + sum(each.delay for each in self.spells if each.since <= now < each.until)

    def transfer(self, now: float, seconds: float, direction: str) -> float:
        """How long a transfer takes that needs `seconds` on a free link."""
        period, first, length = self.busy
        at, left = now, seconds
        for spell in self.spells:
            if direction in spell.direction and spell.since < at + left and at < spell.until:
                left -= max(spell.since - at, 0.0)
                at = max(spell.since, at)
                carried = (spell.until - at) * spell.share
                if carried >= left and spell.share:
                    return at + left / spell.share - now
                at, left = spell.until, left - carried
        while period:
            since = (at - first) % period
            if length - since > 1e-6:
                at += length - since
            elif left <= period - since:
                break
            else:
                at, left = at + period - since, left - (period - since)
        return at + left - now


@dataclass(frozen=True)
class Weather:
    """Behaviour of the network and the bucket. Probabilities are per transfer, message or call."""

    latency: float
    """Mean seconds of a message or transfer."""
    slow: float = 0.0
    """Probability that it, or a write to a volume, takes up to 50 times as long."""
    loss: float = 0.0
    """Probability that a transfer fails, before or after it has had its effect."""
    breaks: float = 0.0
    """Probability that a message breaks its session."""
    bucket: float = 0.0
    """Probability that a call to the bucket fails."""
    saving: float = 0.0
    """Longest time of a part's save, in seconds."""
    merges: float = 0.0
    """Probability that a merge gives no usable fragment."""


@dataclass(frozen=True)
class Scenario:
    """All constants of a schedule. The rest is random on the way."""

    seed: int
    rules: Rules
    """Rules of shard 0."""
    sizes: tuple[tuple[int, ...], ...]
    """Elements of each fragment, by shard."""
    islands: tuple[Island, ...]
    storm: Weather
    faults: tuple[tuple[int, str], ...]
    """Moment and kind, in order. The network is calm after the last one."""
    last: tuple[tuple[int, str], ...] = ()
    """The same, with moments counted from the beginning of the first final cut."""
    volume: int = 1 << 18
    """Bytes of each shard's volume. On a small one the journal's segments are replaced often."""
    budget: int = 1 << 20
    """Bytes of contributions that each shard may hold."""
    adaptive: bool = False
    """Whether units choose how they use their links. Otherwise they keep to float32."""
    shared: bool = False
    """Whether a host has one link to all shards. Otherwise it has one to each."""

    @property
    def contract(self) -> RunContract:
        """In the fields that driver and client read."""
        rules, codec = self.rules, "float32"
        schedule = {name: getattr(rules, name) for name in ("fragments", "interval", "overlap")}
        return run_contract(
            outer={**schedule, "codec": codec},
            communication={"codec": None if self.adaptive else codec},
            quorum={"min": rules.quorum},
            target={"global_steps": rules.target_steps, "tokens": rules.target_tokens},
            checkpoint={"uri": "file:///nowhere", "interval_steps": rules.cut_interval},
            shards=[{"host": "s"}] * rules.shards,
        )

    @property
    def calm(self) -> Weather:
        return Weather(self.storm.latency)

    def rules_of(self, shard: int) -> Rules:
        return replace(self.rules, shard=shard)


def draw(seed: int) -> Scenario:
    """The schedule of a seed."""
    rng = random.Random(seed)
    shards = rng.choice((1, 1, 2, 2, 2, 3))
    fragments = rng.randint(1, 4)
    interval = fragments + rng.randint(0, 4)
    islands = tuple(
        Island(
            f"u{i}",
            rng.choice((1, 1, 1, 2)),
            rng.uniform(0.5, 1.2),
            10 * rng.randint(1, 2),
            rng.choice((0.0, 0.0, 0.0, 0.5, 3.0)),
            distance=random.Random(f"{seed}.{i}").choice((0.0, 0.0, 0.4, 1.5)),
        )
        for i in range(rng.choice((1, 2, 2, 3, 3, 4)))
    )
    steps = interval + rng.randint(4, 14)
    in_tokens = rng.random() < 0.25
    rules = Rules(
        fragments=fragments,
        interval=interval,
        overlap=rng.randint(1, min(3, interval)),
        quorum=rng.choice((1, 1, rng.randint(1, len(islands)))),
        grace_fraction=rng.choice((0.0, 0.5, 0.8)),
        grace_steps=rng.choice((1.0, 2.0)),
        target_steps=None if in_tokens else steps,
        target_tokens=rng.randint(8, 20) * 10 * len(islands) if in_tokens else None,
        cut_interval=rng.randint(2, 2 * interval),
        shards=shards,
        patience=rng.choice((2.0, 8.0)),
        silence=rng.choice((4.0, 12.0)),
        transfer=rng.choice((20.0, 60.0)),
        stale_intervals=rng.choice((1, 2, 8)),
    )
    storm = Weather(
        latency=rng.choice((0.01, 0.05, 0.3)),
        slow=rng.choice((0.0, 0.02, 0.1)),
        loss=rng.choice((0.0, 0.05, 0.3)),
        breaks=rng.choice((0.0, 0.0, 0.02)),
        bucket=rng.choice((0.0, 0.2)),
        saving=rng.choice((0.0, 0.0, 20.0)),
        merges=rng.choice((0.0, 0.05)),
    )
    moments = sorted(rng.randrange(MOMENTS) for _ in range(rng.randint(0, 10)))
    last = sorted(rng.randrange(LAST_MOMENTS) for _ in range(rng.choice((0, 0, 1, 3))))
    drawn = Scenario(
        seed,
        rules,
        layout(rng, shards, fragments),
        islands,
        storm,
        tuple((moment, rng.choice(FAULTS)) for moment in moments),
        tuple((moment, rng.choice(LAST_FAULTS)) for moment in last),
        rng.choice((1 << 18, 60_000, 30_000)),
        rng.choice((1 << 20, 60 * len(islands) * rules.overlap)),
        adaptive=random.Random(f"{seed}.adaptive").random() < 0.5,
    )
    drawn = guarded(drawn, rng) if rng.random() < 0.6 else drawn
    drawn = unequal(drawn, random.Random(f"{seed}.hosts"))
    return rare(failing(drawn, random.Random(f"{seed}.spells")), random.Random(f"{seed}.rare"))


def unequal(scenario: Scenario, rng: random.Random) -> Scenario:
    """Return the same with units whose hosts have unequal links."""
    islands = (
        replace(each, uneven=rng.choice((1.0, 1.5, 3.0))) if each.hosts > 1 else each
        for each in scenario.islands
    )
    return replace(scenario, islands=tuple(islands))


def rare(scenario: Scenario, rng: random.Random) -> Scenario:
    """Return the same with rarer faults, with less memory, or with a unit that is much slower than the others."""
    rules, units = scenario.rules, len(scenario.islands)
    if rng.random() < RARE:
        rounds = rng.randint(1, rules.overlap)
        scenario = replace(scenario, budget=min(scenario.budget, 60 * units * rounds))
    if rng.random() < RARE and rules.guard:
        *others, last = scenario.islands
        if others and rng.random() < 0.7:
            last = replace(last, pace=rng.uniform(5.0, 10.0))
        scenario = replace(scenario, rules=replace(rules, slow_factor=4.0), islands=(*others, last))
    if rng.random() < RARE:
        more = [(rng.randrange(MOMENTS), rng.choice(RARE_FAULTS)) for _ in range(rng.randint(1, 3))]
        scenario = replace(scenario, faults=tuple(sorted([*scenario.faults, *more])))
    return scenario


def failing(scenario: Scenario, rng: random.Random) -> Scenario:
    """Return the same with links that fail. If units may be missing from merges, the run is sometimes long enough to
    show whether a unit starves."""
    rules = scenario.rules
    islands = tuple(
        replace(island, spells=(spell(rng),)) if rng.random() < 0.3 else island for island in scenario.islands
    )
    may_miss = rules.quorum < len(islands) and rules.grace_fraction > 0 and rules.stale_intervals > 1
    if may_miss and rng.random() < 0.05:
        long = replace(rules, target_steps=LONG, target_tokens=None)
        scenario = replace(scenario, rules=long, last=())  # so that the storm ends long before the run
    return replace(scenario, islands=islands)


def spell(rng: random.Random) -> Spell:
    """A link is slow, far, or dead in one direction."""
    since = rng.uniform(0.0, 30.0)
    until = since + rng.uniform(2.0, 20.0)
    slow, far = Spell(since, until, 0.1), Spell(since, until, delay=rng.uniform(0.1, 1.0))
    return rng.choice((slow, far, Spell(since, until, 0.0, "up"), Spell(since, until, 0.0, "down")))


def guarded(scenario: Scenario, rng: random.Random) -> Scenario:
    """Return the same with the guard on. If the other units suffice for a quorum and for a median, one unit may lie."""
    first, *others = scenario.islands
    batches = {island.name: (island.tokens,) for island in scenario.islands}
    rules = replace(scenario.rules, guard=True, step_tokens=batches)
    if len(others) >= max(2, rules.quorum):
        first = replace(first, lie=rng.choice(("", "tokens", "norm")))
    return replace(scenario, rules=rules, islands=(first, *others))


def layout(rng: random.Random, shards: int, fragments: int) -> tuple[tuple[int, ...], ...]:
    """Draw sizes. A shard owns a part of at least one fragment, and may own nothing of others."""
    table = [[rng.choice((10, 10, 10, 0)) for _ in range(fragments)] for _ in range(shards)]
    for sizes in table:
        sizes[rng.randrange(fragments)] = 10
    return tuple(tuple(sizes) for sizes in table)
