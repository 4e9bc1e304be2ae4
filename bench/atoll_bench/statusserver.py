"""Replaces a run's syncer: serves a status in which every unit learns.

Without a status the operator would poll less and less often, unlike for a run that trains.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping

from aiohttp import web

from atoll_bench.client import Client
from atoll_cli.errors import CommandError
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
        self._chosen: ssl.SSLContext | None = None
        self._runner: web.AppRunner | None = None
        self._merged: dict[tuple[str, int], float] = {}
        """Unix seconds of the first merge, by unit and incarnation."""
        self._since: float | None = None
        """Monotonic seconds from which on the figures change; None: they do not change."""
        self.port = 0

    async def __aenter__(self) -> StatusServer:
        base = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        base.sni_callback = self._choose
        application = web.Application()
        application.router.add_get("/{namespace}/{run}/0", self._answer)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=base).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def serve(self, client: Client, namespace: str, run: str, uid: str) -> None:
        """Starts to answer as soon as the run has its certificate.

        Raises:
            CommandError: not within a minute.
        """
        path = f"/api/v1/namespaces/{namespace}/secrets/{run}-syncer-tls"
        deadline = time.monotonic() + CERTIFICATE_SECONDS
        while not (secret := await client.call("GET", path, missing=True)):
            if time.monotonic() > deadline:
                raise CommandError(f"no certificate of the syncer came to be in {namespace}")
            await asyncio.sleep(0.1)
        data = {name: base64.b64decode(value) for name, value in secret["data"].items()}
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=data["ca.crt"].decode())
        with tempfile.NamedTemporaryFile() as file:
            file.write(data["tls.crt"] + b"\n" + data["tls.key"])
            file.flush()
            context.load_cert_chain(file.name)
        self._uid, self._chosen = uid, context

    def _choose(self, connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int | None:
        if self._chosen is None:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        connection.context = self._chosen
        return None

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
