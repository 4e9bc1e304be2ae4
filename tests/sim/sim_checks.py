"""Checks of what must hold in every schedule, from outside: by contents and by each party's own record of its acts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from sim_bucket import WholeCut
from sim_values import Delta, Incarnation, Value, Violation

from atoll_runtime.protocol.effects import Effect, Evict, Merge, Note, Publish, RecordCut, SendPull
from atoll_runtime.protocol.events import Event, FinalCut, Merged, MergeFailed, Received
from atoll_runtime.protocol.identifiers import CutId, RoundId
from atoll_runtime.protocol.ledger import MISSED, REFUSED
from atoll_runtime.protocol.messages import MOST_TURN, Header, Hello, Orders, Part
from atoll_runtime.protocol.rules import COORDINATOR
from atoll_runtime.protocol.waiting import why
from atoll_runtime.transport.messages import FetchHead, Marker, Stop, Welcome

if TYPE_CHECKING:
    from sim_shard import ShardProcess, ShardSlot
    from sim_unit import UnitProcess
    from sim_world import World

    from atoll_runtime.protocol.round import Round

TURNS = 2
"""A unit may miss its turn to be merged this many times in a row, and one more merge."""
LOUD = 5.0
"""Level of a norm that no honest unit reaches."""
Mark = tuple[CutId, int, tuple[Value, ...]]
"""A cut at which an incarnation recorded itself, the tokens trained and the versions held at that moment."""


class Checks:
    """Each method is called at the moment that its name says. It raises `Violation`."""

    def __init__(self, world: World) -> None:
        self.moments = 0
        self._world = world
        self._seen: dict[tuple[int, int, str], Value] = {}
        """The newest value of (shard, fragment, lineage) that any party has had."""
        self._numbers: dict[tuple[int, int, str, int], Value] = {}
        self._welcomed: dict[tuple[int, str, str], int] = {}
        """The highest incarnation of a unit that a shard has welcomed, by shard, lineage and unit."""
        self._marks: dict[Incarnation, list[Mark]] = {}
        self._trained: dict[Incarnation, UnitProcess] = {}
        self._steps: dict[int, int] = {}
        self._furthest: dict[int, int] = {}
        """The highest step that each shard's clock has shown in any of its processes."""
        self._announced: dict[str, Orders] = {}
        """The latest decisions that shard 0 has sent to another shard, by lineage of shard 0."""
        self._clock = 0
        """The highest step that shard 0 has sent to another shard: its clock's, or a cut's, from which one that has
        lost its volume goes on."""
        self._turns: dict[tuple[ShardProcess, RoundId, Part], float] = {}
        """For each header that a round has taken, the largest turn that its shard knew for the unit at that time."""
        self._entered: dict[tuple[int, str, Incarnation], tuple[int, ...]] = {}
        """A shard's versions when an incarnation first joined it according to its journal, by shard and lineage."""
        self._refused: set[tuple[int, int, Incarnation]] = set()
        """Shard, fragment and incarnation of every contribution that was refused for what it is."""
        self._missed: dict[tuple[ShardProcess, int, UnitProcess], list[float]] = {}
        """Times at which merges of a fragment were frozen without a unit that could take part, since its last one."""
        self._asked: dict[tuple[ShardProcess, RoundId, Incarnation], int] = {}
        """Tokens that an incarnation had trained when a process first asked it for a round."""
        self._silent: dict[ShardProcess, set[Incarnation]] = {}
        """Units that are silent according to the last orders of shard 0 to this process."""
        self._lineages: set[tuple[int, str]] = set()
        self.lost_volumes = 0

    # shards

    def started(self, process: ShardProcess) -> None:
        """A process starts. Nothing that any party has had may be lost."""
        machine = process.machine
        self._lineages.add((process.number, process.lineage))
        if len(self._lineages) > len(self._world.shards) + self.lost_volumes:
            raise Violation(f"{process}: begun anew, though its volume was not lost")
        for (s, p, lineage), value in self._seen.items():
            mine = s == process.number and lineage == process.lineage
            if mine and not process.memory[p].holds(value):
                raise Violation(f"{process}: {value} was seen and is lost")
        for (s, lineage, name), incarnation in self._welcomed.items():
            mine = s == process.number and lineage == process.lineage
            if mine and (name not in machine.units or machine.units[name].incarnation < incarnation):
                raise Violation(f"{process}: {name}.{incarnation} was welcomed and is forgotten")
        announced = self._announced.get(process.lineage)
        if announced is not None and process.number == COORDINATOR:
            forgotten = announced.final and not machine.final
            if forgotten or machine.orders.step < announced.step or machine.orders.cut < announced.cut:
                raise Violation(f"{process}: {announced} was announced, {machine.orders} is known")
        self._steps[process.number] = machine.step
        for p, value in enumerate(process.memory):
            if value.version != machine.versions[p]:
                raise Violation(f"{process}: restored {value} as {machine.versions[p]}")
        self.judge(process)

    def went_back(self, slot: ShardSlot) -> None:
        """A volume was restored. Newer merges may be lost for that reason, and their versions may be used again."""
        self.lost_volumes += 1
        self._announced.clear()
        self._entered.clear()
        for value in slot.written():
            key = value.shard, value.fragment, value.lineage
            self._seen[key] = value
            for number in [n for n in self._numbers if n[:3] == key and n[3] > value.version]:
                del self._numbers[number]

    def handled(self, process: ShardProcess, event: Event, effects: Sequence[Effect]) -> None:
        """The machine has handled an event. Its effects are not carried out yet."""
        machine, s = process.machine, process.number
        if isinstance(event, (Header, Received)):
            part = event.part
            for each in machine.rounds.holding:
                if each.contributions.header(part.unit, part.host) == part:
                    key = process, each.id, part
                    self._turns[key] = max(self._turns.get(key, 0.0), machine.units[part.unit].most_turn)
        if isinstance(event, Hello) and Evict(event.unit, event.incarnation) in effects:
            who = event.unit, event.incarnation
            self._entered[s, process.lineage, who] = tuple(machine.versions)
        if isinstance(event, Orders):
            self._silent[process] = set(event.silent)
        self._carried(process)
        for effect in effects:
            match effect:
                case SendPull(round_id, unit):
                    who = unit, machine.units[unit].incarnation
                    trained = self._trained[who].trained if who in self._trained else 0
                    self._asked.setdefault((process, round_id, who), trained)
                    if who in self._silent.get(process, ()):
                        raise Violation(
                            f"{process}: {round_id} waits for {unit}, which shard 0 says is silent"
                        )
                    until = machine.units[unit].until(machine.rules.silent_after)
                    if until is None or until < self._world.now:
                        raise Violation(f"{process}: {round_id} waits for {unit}, which is silent")
                case Merge():
                    self.frozen(process, effect)
                case Publish(p, version):
                    self.published(process, p, version)
                case RecordCut():
                    self.recorded(process, effect)
                case Note(entry):
                    self.noted(process, entry)
        if machine.step < self._steps[s]:
            raise Violation(f"{process}: the clock goes back to {machine.step}")
        if s != COORDINATOR and machine.step > self._clock:
            raise Violation(f"{process}: step {machine.step}, and shard 0 has told {self._clock}")
        self._steps[s] = machine.step
        self._furthest[s] = max(machine.step, self._furthest.get(s, 0))
        for unit in machine.units.values():
            if not unit.account.balanced:
                raise Violation(f"{process}: {unit.name}: {unit.account}")
        if isinstance(event, (Merged, MergeFailed, Hello, FinalCut)):
            self.judge(process)
            held = [round_id.fragment for round_id in machine.rounds.in_flight]
            if len(set(held)) != len(held):
                raise Violation(f"{process}: rounds in flight of fragments {held}")
        if isinstance(event, FinalCut) or (isinstance(event, Orders) and event.final):
            self._final(process)

    def _carried(self, process: ShardProcess) -> None:
        """Record headers that a new round took over from an earlier one."""
        rounds = process.machine.rounds
        for held in rounds.in_flight.values():
            for unit, headers in held.contributions.parts.items():
                for header in headers.values():
                    self._turns.setdefault((process, held.id, header), rounds.units[unit].most_turn)

    def announced(self, process: ShardProcess, orders: Orders) -> None:
        """Shard 0 sends another shard its decisions. From now on it must not forget them."""
        self._clock = max(self._clock, orders.step, orders.cut.step)
        known = self._announced.setdefault(process.lineage, orders)
        self._announced[process.lineage] = replace(
            orders,
            step=max(known.step, orders.step),
            cut=max(known.cut, orders.cut),
            final=known.final or orders.final,
        )

    def frozen(self, process: ShardProcess, merge: Merge) -> None:
        """The membership of a round is frozen."""
        assert process.driver is not None
        machine, p, registry = process.machine, merge.round.fragment, self._world.registry
        held = process.driver.parts.take(merge.members)
        parts = {key: registry.content(each.body) for key, each in held.items()}
        names = [member.unit for member in merge.members]
        if names != sorted(set(names)):
            raise Violation(f"{merge.round}: members {names}")
        if merge.round.step > machine.step:
            raise Violation(f"{merge.round}: it is merged before it is due")
        if len(names) < machine.rules.quorum:
            raise Violation(f"{merge.round}: {len(names)} members are below the quorum")
        known = [level for levels in machine.rounds.versions[p].norms.merges for level in levels]
        lied = any(self._world.lie_of(name) == "norm" for name in names)
        # Norms of early merges, from before outliers could be detected, may be the liar's.
        if lied and len(names) >= 3 and max(known, default=0.0) < LOUD:
            raise Violation(f"{merge.round}: a member's norm is ten thousand times the others': {names}")
        for member in merge.members:
            unit, who = machine.units[member.unit], (member.unit, member.incarnation)
            mine = [delta for (name, _), delta in parts.items() if name == member.unit]
            if len(mine) != unit.hosts_wanted:
                raise Violation(f"{merge.round}: {len(mine)} parts of {member.unit} are held")
            delta: Delta = mine[0]
            for other in mine:
                same = (other.who, other.anchor.source, other.start, other.stop)
                if same != (delta.who, delta.anchor.source, delta.start, delta.stop):
                    raise Violation(f"{merge.round}: parts of {member.unit} differ")
            if not (delta.who == who and member.incarnation == unit.incarnation):
                raise Violation(f"{merge.round}: {who} is no member")
            said = (member.trained - member.tokens, member.trained, member.anchor)
            if said != (delta.start, delta.stop, delta.anchor.version):
                raise Violation(f"{merge.round}: {member} says not what it is: {delta}")
            if delta.stop < self._asked.get((process, member.round, who), math.inf):
                raise Violation(f"{merge.round}: {delta} was taken before this process asked for it")
            if delta.stop > self._trained[who].trained:
                raise Violation(f"{merge.round}: {delta} was never trained")
            self._staleness(process, merge, member)
        self._starved(process, machine.rounds.in_flight[merge.round])
        if process.memory[p].version >= merge.round.step:
            raise Violation(f"{merge.round}: {process.memory[p]} is there already")

    def published(self, process: ShardProcess, p: int, version: int) -> None:
        """A version is announced. It must be on the disk and be served."""
        value = process.memory[p]
        if value.version != version or not self._durable(process, value):
            raise Violation(f"{process}: {p}@{version} is announced, and is not on the disk: {value}")
        if process.state[p].version < version:
            raise Violation(f"{process}: {p}@{version} is announced and not served")

    def fetched(self, process: ShardProcess, head: FetchHead, body: memoryview) -> None:
        """A part leaves its shard."""
        value = self._world.registry.content(body)
        if not isinstance(value, Value) or value.version != head.version:
            raise Violation(f"{process}: serves {value} as version {head.version}")
        self.seen(value)

    def seen(self, value: Value) -> None:
        """A value leaves its shard."""
        key = value.shard, value.fragment, value.lineage
        known = self._seen.get(key)
        if known is None or value.version > known.version:
            self._seen[key] = value
        first = self._numbers.setdefault((*key, value.version), value)
        if first.source is not value.source:
            raise Violation(f"{value} has two contents")

    def welcomed(self, process: ShardProcess, unit: UnitProcess) -> None:
        """A host is welcomed. From now on no older incarnation of its unit may take part."""
        key = process.number, process.lineage, unit.slot.name
        if unit.incarnation < self._welcomed.get(key, 0):
            raise Violation(f"{process}: {unit} is welcomed after {self._welcomed[key]}")
        self._welcomed[key] = unit.incarnation
        for value in process.state:
            self.seen(value)

    def told(self, process: ShardProcess, message: Welcome | Marker | Stop) -> None:
        """Shard 0 tells a learner of a cut or of the end. Its journal must have it."""
        if process.number != COORDINATOR:
            return
        record = process.slot.record
        cut, final = CutId(*record["cut"]), bool(record["final"])
        known = final if isinstance(message, Stop) else cut >= message.cut
        if not known:
            raise Violation(f"{process}: {message} is sent, and the journal does not have that")

    def recorded(self, process: ShardProcess, part: RecordCut) -> None:
        """A shard records its part of a cut."""
        values, step = process.state, part.cut.step
        versions = [value.version for value in values]
        if list(part.record["versions"]) != versions:
            raise Violation(f"{process}: record of {part.record['versions']}, state of {versions}")
        for name, unit in part.record["units"].items():
            merged = sum(value.merged.get(name, 0) for value in values)
            if unit["account"]["merged"] != merged:
                raise Violation(f"{process}: cut {step}: {name}: {merged} are merged")
            who = name, unit["incarnation"]
            known = max(unit["account"]["settled"].values(), default=0)
            end = max(value.ends.get(who, 0) for value in values)
            if known != end:
                raise Violation(f"{process}: cut {step}: holds {who} up to {end}, and says up to {known}")
        for value in values:
            if not self._durable(process, value):
                raise Violation(f"{process}: {value} is not durable")
        if part.cut.final:
            self._world.end_begins()

    def noted(self, process: ShardProcess, entry: Any) -> None:
        """A decision is written to the tape. Hosts of these units step together, so their parts never disagree."""
        if entry["event"] == "dropped" and "disagree" in entry["why"]:
            raise Violation(f"{process}: {entry['unit']}: {entry['why']}")
        if entry["event"] == "dropped" and "needs its memory" in entry["why"]:
            for (shard, _, unit), missed in self._missed.items():
                if shard is process and unit.who[0] == entry["unit"]:
                    missed.clear()  # where memory holds the due rounds alone, nothing is promised to slow links
        if entry["event"] == "opened":
            held = {str(each.id): each for each in process.machine.rounds.in_flight.values()}
            self._opened(process, held[entry["round"]])
        if entry["event"] == "refused" and "fragment" in entry:
            who = entry["unit"], process.machine.units[entry["unit"]].incarnation
            self._refused.add((process.number, entry["fragment"], who))
            honest = not self._world.lie_of(entry["unit"])
            if honest and "not finite" not in entry["why"]:
                raise Violation(f"{process}: {who} is refused, and does nothing wrong: {entry['why']}")

    def _opened(self, process: ShardProcess, held: Round) -> None:
        """A round is due. What was asked for early or carried over gives way if memory is short. If it makes a quorum,
        the other units still have a step to answer."""
        rounds = process.machine.rounds
        spare = [p for p in rounds.carried if p != held.id.fragment]
        spare += [each.id.fragment for each in rounds.in_flight.values() if each.stage == "Early"]
        width = {each.p: each.width for each in rounds.versions}
        needed = len(rounds.roster.live) * sum(width[each.fragment] for each in rounds.in_flight)
        # A unit has one contribution to a fragment, so those carried over from a round in flight are counted there.
        flying = {each.fragment for each in rounds.in_flight}
        carried = [(p, each) for p, each in rounds.carried.items() if p not in flying]
        needed += sum(width[p] * len(each.contributions.parts) for p, each in carried)
        if spare and needed > rounds.capacity:
            raise Violation(f"{process}: {held.id} lacks memory, which rounds of {spare} have")
        if process.number == COORDINATOR and held.stage == "Collecting" and held.grace_until is not None:
            waited = held.grace_until - held.opened
            for name in rounds.roster.awaited[held.id]:
                if (
                    self._sets_pace(name)
                    and rounds.units[name].pace.steady
                    and waited < 0.99 * self._pace_of(name)
                ):
                    raise Violation(f"{process}: {held.id}: {name} has {waited:.2f} s to answer")

    def _sets_pace(self, unit: str) -> bool:
        """Whether the unit is not too slow to set the clock, whichever others are live."""
        quickest = min(island.pace for island in self._world.scenario.islands)
        return self._pace_of(unit) <= self._world.scenario.rules.slow_factor * quickest

    def _pace_of(self, unit: str) -> float:
        return next(island.pace for island in self._world.scenario.islands if island.name == unit)

    def suspended(self, process: ShardProcess, step: int) -> None:
        """The operator considers this cut to hold everything of this shard."""
        cut = self._world.bucket.cuts.get(step)
        held = [] if cut is None else [value.source for value in cut.parts[process.number].values]
        # Sources, because a shard that lost its volume may have begun with this cut.
        if held != [value.source for value in process.memory]:
            raise Violation(f"{process}: cut {step} holds not all of {process.memory}: {cut}")

    def _durable(self, process: ShardProcess, value: Value) -> bool:
        """Whether the journal has the value, synced."""
        size = process.layout.fragments[value.fragment].size
        return not size or process.slot.disk.holds(self._world.registry.array(value, size).tobytes())

    # units

    def begun(self, unit: UnitProcess) -> None:
        self._trained[unit.who] = unit

    def marked(self, unit: UnitProcess, cut: CutId) -> None:
        """A unit records itself."""
        self._marks.setdefault(unit.who, []).append((cut, unit.trained, tuple(unit.hosts[0].anchors)))

    def adopted(self, unit: UnitProcess, number: int, before: Value, value: Value) -> None:
        """A unit takes a version. It must not be older than the last one of the same lineage, unless that is lost."""
        known = self._numbers.get((value.shard, value.fragment, value.lineage, before.version))
        if value.lineage != before.lineage or known is not before:
            return
        if value.version < before.version:
            raise Violation(f"{unit}: {value} after {before}")
        if not self._needed(unit, before, value):
            raise Violation(f"{unit}: {value} replaces its work since {before}, which it could contribute")

    def _needed(self, unit: UnitProcess, before: Value, value: Value) -> bool:
        """Whether the unit may take the value: it holds a contribution of the unit since `before`, or none of the unit
        is in `before`, or `before` is too old, or a contribution of the unit was refused."""
        rules = self._world.scenario.rules
        due = value.version + rules.interval
        step = max(self._furthest.get(value.shard, 0), due)
        if self.lost_volumes or step - before.version > rules.oldest(1.0):
            return True
        if (value.shard, value.fragment, unit.who) in self._refused:
            return True
        here: Value | None = value
        while here is not None and here.version > before.version:
            if any(member.who == unit.who for member in here.members):
                return True
            here = here.parent
        return not before.ends.get(unit.who)

    # cuts

    def whole(self, cut: WholeCut) -> None:
        """A cut is complete. No party in it may know more of another than that had recorded, and a final cut must be at
        the target."""
        if cut.parts[0].cut.final:
            self._reached(cut.step)
        for part in cut.parts:
            for value in part.values:
                for who, stop in value.ends.items():
                    mark = self._mark(who, part.cut)
                    if not (mark is None or stop <= mark[1]):
                        raise Violation(
                            f"cut {cut.step}: {value} holds {who} up to {stop}, recorded at {mark and mark[1]}"
                        )
        values = cut.values
        for who in self._marks:
            mark = self._mark(who, cut.parts[0].cut, exact=True)
            for held, value in zip(mark[2] if mark else (), values, strict=False):
                if not (held.lineage != value.lineage or held.version <= value.version):
                    raise Violation(f"cut {cut.step}: {who} held {held}, the cut holds {value}")

    # the end

    def ended(self) -> None:
        """Everyone has left."""
        for slot in self._world.shards:
            process = slot.process
            if process is None or process.driver is None:
                raise Violation(f"shard {slot.number} is not there")
            if process.machine.rounds.in_flight:
                raise Violation(f"{process}: rounds {list(process.machine.rounds.in_flight)} are left")
            if process.driver.parts.used:
                raise Violation(f"{process}: {process.driver.parts.used} bytes are reserved for nobody")
            self.judge(process)
            self._final(process)

    def why(self) -> str:
        """What each party waits for."""
        shards = [
            f"shard {slot.number}: "
            + (why(slot.process.machine, self._world.now) if slot.process and slot.process.driver else "down")
            for slot in self._world.shards
        ]
        units = [
            f"{slot.name}: {[*map(str, slot.processes)]} stopped={slot.stopped}" for slot in self._world.units
        ]
        return "; ".join(shards + units)

    def _staleness(self, process: ShardProcess, merge: Merge, member: Part) -> None:
        """Check the age of a contribution. An incarnation's first one must not be against a version that was old when
        it joined. None may be too old for the unit's link, as the shard knew it when the round took its headers, unless
        nothing newer was merged."""
        machine, p, unit = process.machine, merge.round.fragment, member.unit
        who, anchor = (unit, member.incarnation), member.anchor
        current, age = machine.versions[p], member.round.step - anchor
        value: Value | None = process.memory[p]
        known = False
        while value is not None and value.lineage == process.lineage:
            known = known or any(delta.who == who for delta in value.members)
            value = value.parent
        met = self._entered.get((process.number, process.lineage, who))
        if not known and met is not None and anchor < met[p]:
            raise Violation(f"{merge.round}: {unit} counts first from {anchor}, but joined at {met[p]}")
        headers = machine.rounds.in_flight[merge.round].contributions.parts[unit].values()
        turn = min(self._turns[process, merge.round, header] for header in headers)
        oldest = machine.rules.oldest(turn)
        if not (anchor == current or age <= oldest):
            raise Violation(f"{merge.round}: {unit} was {age} steps old when it was asked")

    def _starved(self, process: ShardProcess, held: Round) -> None:
        """A unit that could take part in several merges of a fragment in a row must be in one of them."""
        now, p, members = self._world.now, held.id.fragment, {(m.unit, m.incarnation) for m in held.members}
        for unit in (unit for slot in self._world.units for unit in slot.processes):
            missed, quiet = self._missed.setdefault((process, p, unit), []), self._quiet_since(process, unit)
            if unit.who in members or quiet > now:
                missed.clear()
                continue
            answer, cycle = self._needs(process, unit)
            if held.grace_until is None or held.grace_until - held.opened < answer:
                continue  # its header may come too late
            missed[:] = [*(at for at in missed if at > quiet), now]
            # A longer pause, in which no round is opened, gives time for one contribution too.
            elapsed = sum(min(end - start, cycle) for start, end in pairwise(missed))
            turn = min(cycle * (len(missed) - 1) / elapsed, MOST_TURN) if elapsed else MOST_TURN
            if len(missed) > TURNS * math.ceil(turn) + 1:
                row = f"none of {len(missed)} merges of fragment {p} in a row, and could be in one of {turn:.1f}"
                raise Violation(f"{process}: {unit} is in {row}")

    def _quiet_since(self, process: ShardProcess, unit: UnitProcess) -> float:
        """When the last failure ended that could keep a unit out of a shard's merges; in the future while one lasts."""
        calm, slot = self._world.calm_since, unit.slot
        if calm is None or not unit.begun or unit.incarnation != slot.incarnation:
            return math.inf
        ends = [spell.until for spell in unit.island.spells if spell.since <= self._world.now]
        return max(calm, unit.began, slot.hung_until, process.slot.parted_until, *ends)

    def _needs(self, process: ShardProcess, unit: UnitProcess) -> tuple[float, float]:
        """Seconds from a round's opening to the unit's header, and from one contribution to a fragment to the next.
        There is no promise for a liar, for a unit more than H - 2 steps away, or if an anchor is too old after one
        interval. In that case a unit that has missed a merge fetches the next version when that is too old again."""
        island, rules = unit.island, process.machine.rules
        delay = 2 * self._world.scenario.storm.latency
        trip, steps = 2 * (island.distance + delay), island.hosts * island.pace
        transfer = max(1.0, island.uneven) * island.link + delay
        own = sum(bool(fragment.size) for fragment in process.layout.fragments)
        far = trip > (rules.interval - 2) * island.pace
        answer = math.inf if island.lie or far or rules.stale_intervals < 2 else steps + trip
        return answer, max(own * transfer, 2 * (transfer + trip + steps))

    def judge(self, process: ShardProcess) -> None:
        """The accounts must agree with the contents."""
        for name, unit in process.machine.units.items():
            account = unit.account
            who = name, account.incarnation
            lost = [account.discarded.get(fate, 0) for fate in (MISSED, REFUSED)]
            merged = sum(value.merged.get(name, 0) for value in process.memory)
            missed = sum(value.missed.get(name, 0) for value in process.memory)
            trained = self._trained[who].trained if who in self._trained else 0
            if (account.merged, sum(lost)) != (
                merged,
                missed,
            ):  # without the refusal it would count as missed
                said = f"merged {account.merged}, missed, refused {lost}"
                raise Violation(f"{process}: {name}: {said}, in truth {merged}, {missed}")
            least = min([account.in_flight, *account.discarded.values()])
            if least < 0 or not account.balanced:
                raise Violation(f"{process}: {name}: {account}")
            if account.position > trained:
                raise Violation(f"{process}: {name}: {account.position} tokens, {trained} trained")
            settled = {p: account.settled.get(p, 0) for p in account.owned}
            ends = {p: process.memory[p].ends.get(who, 0) for p in account.owned}
            if settled != ends and not process.machine.final:
                raise Violation(f"{process}: {who}: settled up to {settled}, merged up to {ends}")

    def _reached(self, step: int) -> None:
        """A final cut is complete. Shard 0, which completed it, must be at its target."""
        process = self._world.shards[COORDINATOR].process
        if process is not None and process.driver is not None:
            machine = process.machine
            target, tokens = machine.rules.target_steps, machine.rules.target_tokens
            if target is not None and machine.step < target:
                raise Violation(f"{process}: final cut {step} at {machine.step}, the target is {target}")
            merged = sum(sum(value.merged.values()) for value in process.memory)
            if tokens is not None and merged < tokens * len(machine.rounds.owned):
                raise Violation(f"{process}: final cut {step}: {merged} tokens, the target is {tokens}")

    def _final(self, process: ShardProcess) -> None:
        """The final cut must hold what the shard holds, and no tokens may be in flight."""
        machine = process.machine
        step = int(machine.final.rpartition("/")[2])
        cut = self._world.bucket.cuts[step]
        part = cut.parts[process.number]
        for value, own in zip(part.values, process.memory, strict=True):
            # A shard that lost its volume after its part was saved is older than the final cut.
            if value.source is not own.source and part.lineage == process.lineage:
                raise Violation(f"{process}: the final cut holds {value}, the shard {own}")
        for unit in machine.units.values():
            if unit.account.in_flight != 0:
                raise Violation(f"{process}: {unit.name}: {unit.account.in_flight} are in flight")

    def _mark(self, who: Incarnation, cut: CutId, exact: bool = False) -> Mark | None:
        """The mark of an incarnation for this cut, or its first one for a later cut."""
        for mark in self._marks.get(who, []):
            if mark[0] == cut or (mark[0] > cut and not exact):
                return mark
        return None
