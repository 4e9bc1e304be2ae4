"""Replaces a run's syncer: serves a status in which every unit learns.

Without a status the operator would poll less and less often, unlike for a run that trains.
"""

from __future__ import annotations

import base64
import ssl
import time
from collections.abc import Callable, Mapping

from aiohttp import web

from atoll_bench.client import Client, until, url
from atoll_local.controlplane import free_port
from atoll_operator.certificates.authority import load_pair
from atoll_runtime.contract import LedgerReport, SyncerStatus, UnitReport, dump

CERTIFICATE_SECONDS = 60.0
FRAGMENTS = 24
STEP_SECONDS = 0.5
STEP_TOKENS = 2**18
Units = Callable[[], Mapping[str, tuple[int, int]]]
"""Maps the name of each learning unit to its incarnation and hosts."""


class StatusServer:
    """One shard's `/status` over TLS, with the certificate that the operator issued for the run."""

    def __init__(self, units: Units) -> None:
        self._units = units
        self._uid = ""
        application = web.Application()
        application.router.add_get("/{namespace}/{run}/0", self._answer)
        self._runner = web.AppRunner(application, access_log=None)
        self._merged: dict[tuple[str, int], float] = {}
        """Unix seconds of the first merge, by unit and incarnation."""
        self._since: float | None = None
        """Monotonic seconds from which on the figures change; None: they do not change."""
        self.port = free_port()

    async def __aenter__(self) -> StatusServer:
        await self._runner.setup()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def serve(self, client: Client, namespace: str, run: str, uid: str) -> None:
        """Starts to answer as soon as the run has its certificate. Raises `CommandError` if it has none in a minute."""
        path = url("secrets", namespace, f"{run}-syncer-tls")
        secret = await until(
            f"{namespace} has a certificate of the syncer",
            lambda: client.call("GET", path, missing=True),
            CERTIFICATE_SECONDS,
            interval=0.1,
        )
        data = {name: base64.b64decode(value) for name, value in secret["data"].items()}
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=data["ca.crt"].decode())
        load_pair(context, data["tls.crt"], data["tls.key"])
        self._uid = uid
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=context).start()

    def train(self) -> None:
        """Makes all figures change from now on, as those of units that train do."""
        self._since = time.monotonic()

    async def _answer(self, _: web.Request) -> web.Response:
        seconds = 0.0 if self._since is None else time.monotonic() - self._since
        units = {
            name: self._unit(index, name, incarnation, hosts, seconds)
            for index, (name, (incarnation, hosts)) in enumerate(self._units().items())
        }
        rounds = int(seconds / STEP_SECONDS)
        status = SyncerStatus(
            run_uid=self._uid,
            phase="Running",
            global_step=rounds,
            tokens=rounds * STEP_TOKENS * len(units),
            rounds=rounds,
            units=units,
            fragments=FRAGMENTS,
            ledger={name: _ledger(unit) for name, unit in units.items()},
            time=time.time(),
        )
        return web.Response(text=dump(status), content_type="application/json")

    def _unit(self, index: int, name: str, incarnation: int, hosts: int, seconds: float) -> UnitReport:
        """A unit's report. Units step at different times."""
        steps = int(seconds / STEP_SECONDS + index % 7 / 7) + 100
        return UnitReport(
            incarnation=incarnation,
            hosts=hosts,
            state="Learning",
            step=steps,
            inner_steps=steps,
            tokens=steps * STEP_TOKENS,
            loss=2 + 100 / steps,
            tokens_per_second=STEP_TOKENS / STEP_SECONDS,
            step_seconds=STEP_SECONDS,
            contributions=steps,
            seeded_step=0,
            first_merge_time=self._merged.setdefault((name, incarnation), time.time()),
        )


def _ledger(unit: UnitReport) -> LedgerReport:
    trained = unit.tokens * FRAGMENTS
    lost, on_its_way = trained // 20, STEP_TOKENS * FRAGMENTS
    return LedgerReport(
        trained=trained, merged=trained - lost - on_its_way, discarded={"Missed": lost}, in_flight=on_its_way
    )
