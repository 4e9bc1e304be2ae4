"""The syncer's report: `/status` over HTTPS with mTLS; `/healthz`, `/readyz` and `/metrics` in plain HTTP."""

from __future__ import annotations

import functools
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import msgspec
from aiohttp import web
from pydantic import ValidationError

from atoll_runtime.checkpoint import arrays
from atoll_runtime.contract import (
    BeginningReport,
    CheckpointReport,
    LedgerReport,
    LinkReport,
    Order,
    RunContract,
    SyncerStatus,
    UnitReport,
    identity,
    most_waits,
)
from atoll_runtime.protocol.events import CutOrdered
from atoll_runtime.protocol.linkmeter import LinkReading
from atoll_runtime.protocol.machine import Syncer
from atoll_runtime.protocol.messages import Report
from atoll_runtime.protocol.units import Unit
from atoll_runtime.protocol.waiting import waits, why
from atoll_runtime.syncer.service import Service
from atoll_runtime.syncer.summary import summary
from atoll_runtime.transport.messages import LONGEST_TEXT, MOST_SUSPECTS, Figures
from atoll_runtime.transport.web import WebServer, prometheus

Phase = Literal["Starting", "Running", "Finishing", "Finished", "Failed"]
READY = ("Running", "Finishing", "Finished")
PREFIX = "atoll_syncer"
OF_UNIT = (
    *("incarnation", "step", "loss", "tokens_per_second", "contributions", "refused", "refusals", "repeated"),
    *("suspect", "seeded_step", "seed_message", "first_merge_time"),
)
"""Fields of `UnitReport` that `Unit` has too."""


@dataclass
class Status:
    """What the syncer reports at any time, also before there is a service and after it failed."""

    run: RunContract
    shard: int = 0
    phase: Phase = "Starting"
    message: str = "reading the journal"
    service: Service | None = None

    def report(self) -> SyncerStatus:
        """Returns the report of the whole run on shard 0, else of this shard."""
        own, service = self.own(), self.service
        if service is None or not service.machine.coordinates:
            return own
        return summary(own, list(service.others.values()))

    def own(self) -> SyncerStatus:
        """Returns the report of this shard."""
        run, service, uri = self.run, self.service, self.run.checkpoint.uri
        report = functools.partial(
            SyncerStatus,
            run_uid=run.uid,
            target_steps=run.target.global_steps,
            shard=self.shard,
            shards=len(run.shards),
            time=time.time(),
        )
        if service is None:
            return report(phase=self.phase, message=self.message, checkpoint=CheckpointReport(uri=uri))
        machine, told = service.machine, msgspec.structs.asdict(figures(service))
        phase: Phase = "Finished" if machine.final else "Finishing" if machine.finishing else "Running"
        if self.phase == "Failed":
            phase, told["message"] = self.phase, self.message
        live = machine.rounds.live
        return report(
            **told,  # it ignores `suspects`, as any unknown key
            phase=phase,
            loss=mean_loss(live),
            tokens_per_second=sum(unit.tokens_per_second for unit in live),
            quorum=machine.rounds.last_quorum,
            real_interval=machine.rounds.interval.value or 0.0,
            checkpoint=CheckpointReport(
                newest_step=service.driver.cuts.newest,
                uri=uri,
                error=service.driver.cuts.error,
                current=machine.current,
            ),
            units={
                name: unit_report(machine, unit, service.report_of(unit))
                for name, unit in sorted(machine.units.items())
            },
            fragments=len(machine.rounds.owned),
            ledger={
                name: LedgerReport.model_validate(unit.account, from_attributes=True)
                for name, unit in sorted(machine.units.items())
            },
            final_checkpoint=machine.final,
        )


def figures(service: Service) -> Figures:
    """Returns what another shard tells shard 0 of itself."""
    machine = service.machine
    suspects = [unit for unit in machine.units.values() if unit.suspect and unit.hosts]
    return Figures(
        message=why(machine, service.driver.now())[:LONGEST_TEXT],
        # The clock may be a few steps ahead. A kill loses those steps, but no merge that is on disk.
        global_step=machine.step if machine.final or machine.sealed else max(service.state.versions),
        tokens=machine.tokens,
        rounds=machine.rounds.merges,
        bytes_in=service.bytes_in,
        bytes_out=service.bytes_out,
        restarts=service.driver.restarts,
        suspects={
            unit.name: (unit.incarnation, unit.suspect[:LONGEST_TEXT]) for unit in suspects[:MOST_SUSPECTS]
        },
    )


def unit_report(machine: Syncer, unit: Unit, report: Report | None) -> UnitReport:
    """Returns the report of one unit, for the operator."""
    beginning = report and report.beginning
    link = report.link if report is not None and unit.hosts else LinkReading()
    connected: Literal["Learning", "Joining"] = "Learning" if unit.contributions else "Joining"
    most = most_waits(len(machine.units))
    return UnitReport(
        **{name: getattr(unit, name) for name in OF_UNIT},
        hosts=len(unit.hosts),
        state=connected if unit.hosts else "Gone",
        inner_steps=unit.past_steps + unit.steps,
        tokens=unit.account.tokens,
        step_seconds=unit.pace.value or 0.0,
        slow=machine.rounds.roster.outpaced(unit.name),
        staleness=max(0, machine.step - unit.last_merge),
        beginning=None if beginning is None else BeginningReport(**msgspec.structs.asdict(beginning)),
        link=LinkReport(**vars(link), **vars(link.use)),  # it ignores `use`, as any unknown key
        waits=list(islice(waits(machine, unit), most)),
    )


def mean_loss(units: list[Unit]) -> float | None:
    """Returns the mean of the units' losses, weighted by the tokens of a step."""
    losses = [(unit.tokens / unit.steps, unit.loss) for unit in units if unit.loss is not None and unit.steps]
    total = sum(tokens for tokens, _ in losses)
    return sum(tokens * loss for tokens, loss in losses) / total if total else None


def metrics(report: SyncerStatus) -> str:
    """Returns the report as Prometheus text."""
    run = {
        "global_step": report.global_step,
        "rounds_total": report.rounds,
        "merged_tokens_total": report.tokens,
        "received_bytes_total": report.bytes_in,
        "sent_bytes_total": report.bytes_out,
        "restarts_total": report.restarts,
        "real_interval_steps": report.real_interval,
        "tokens_per_second": report.tokens_per_second,
    }
    lines = prometheus(PREFIX, run)

    def gauge(name: str, values: Mapping[str, object]) -> None:
        """Adds a gauge. `values`: by labels."""
        lines.append(f"# TYPE {PREFIX}_{name} gauge")
        lines.extend(f"{PREFIX}_{name}{{{labels}}} {value}" for labels, value in values.items())

    units = {f'unit="{name}"': unit for name, unit in report.units.items()}
    for name in ("step", "tokens", "contributions", "refused", "repeated", "step_seconds", "staleness"):
        gauge(f"unit_{name}", {label: getattr(unit, name) for label, unit in units.items()})
    for name in ("suspect", "slow"):
        gauge(f"unit_{name}", {label: int(bool(getattr(unit, name))) for label, unit in units.items()})
    refusals: dict[str, int] = {}
    for label, unit in units.items():
        refusals |= {f'{label},reason="{reason}"': n for reason, n in sorted(unit.refusals.items())}
    gauge("unit_refusals", refusals)
    for name in (name for name, field in LinkReport.model_fields.items() if field.default != ""):
        gauge(f"unit_link_{name}", {label: getattr(unit.link, name) for label, unit in units.items()})
    fates: dict[str, int] = {}
    for name, each in report.ledger.items():
        spent = {"merged": each.merged, **each.discarded, "in_flight": each.in_flight}
        fates |= {f'unit="{name}",fate="{fate}"': count for fate, count in spent.items()}
    gauge("token_fragments", fates)
    return "\n".join(lines) + "\n"


class StatusServer(WebServer[SyncerStatus]):
    """Serves the report, and takes the operator's orders."""

    def __init__(self, status: Status, context: ssl.SSLContext, port: int, health_port: int) -> None:
        self._status = status
        super().__init__(status.report, READY, metrics, context, port, health_port, arrays.stuck, status.own)
        self.secure.router.add_post("/status", self._order)

    async def _order(self, request: web.Request) -> web.Response:
        """Takes an order for a cut. Only the operator may give one; other members of the run may not."""
        run, service = self._status.run, self._status.service
        operator = identity(run.namespace, run.name, "operator", "operator")
        certificate = request.get_extra_info("peercert") or {}
        if ("URI", operator) not in certificate.get("subjectAltName", ()):
            return web.Response(status=403, text=f"only {operator} may give orders\n")
        try:
            order = Order.model_validate_json(await request.read())
        except ValidationError as error:
            return web.Response(status=400, text=f"not an order: {error}\n")
        if service is None:
            return web.Response(status=503, text=f"{self._status.message}\n")
        service.driver.feed(CutOrdered(order.cut))  # the report says when the cut is in the bucket
        return web.Response(status=202)
