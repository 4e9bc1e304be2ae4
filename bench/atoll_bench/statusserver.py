"""Stands for a run's syncer, of which the operator needs no more than a status: every unit learns, figures stand still.

It is the environment, not what is measured: without an answer the operator would ask in ever longer intervals, and
its steady state would be one that no training run is in.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping

from aiohttp import web

from atoll_bench.client import BenchError, Client
from atoll_runtime.contract import LedgerReport, SyncerStatus, UnitReport, dump

CERTIFICATE_SECONDS = 60.0
FRAGMENTS = 24
LEDGER = LedgerReport(trained=10**9, merged=9 * 10**8, discarded={"Overwritten": 9 * 10**7}, in_flight=10**7)
Units = Callable[[], Mapping[str, tuple[int, int]]]
"""Name of each unit that learns to its incarnation and hosts."""


class StatusServer:
    """One shard's `/status` over TLS, with the certificate that the operator made for the run."""

    def __init__(self, units: Units) -> None:
        self._units = units
        self._uid = ""
        self._chosen: ssl.SSLContext | None = None
        self._runner: web.AppRunner | None = None
        self._merged: dict[tuple[str, int], float] = {}
        """Unit and incarnation to Unix seconds."""
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
        """Starts to answer as soon as the run's certificate is there.

        Raises:
            BenchError: not within a minute.
        """
        path = f"/api/v1/namespaces/{namespace}/secrets/{run}-syncer-tls"
        deadline = time.monotonic() + CERTIFICATE_SECONDS
        while not (secret := await client.call("GET", path, missing=True)):
            if time.monotonic() > deadline:
                raise BenchError(f"no certificate of the syncer came to be in {namespace}")
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

    async def _answer(self, _: web.Request) -> web.Response:
        units = {
            name: UnitReport(
                incarnation=incarnation,
                hosts=hosts,
                state="Learning",
                contributions=1,
                seeded_step=0,
                first_merge_time=self._merged.setdefault((name, incarnation), time.time()),
            )
            for name, (incarnation, hosts) in self._units().items()
        }
        status = SyncerStatus(
            run_uid=self._uid,
            phase="Running",
            units=units,
            fragments=FRAGMENTS,
            ledger=dict.fromkeys(units, LEDGER),
        )
        return web.Response(text=dump(status), content_type="application/json")
