"""A test that plays syncers and evaluators, with the certificates that the operator made."""

from __future__ import annotations

import asyncio
import base64
import ssl
import tempfile
import threading
from typing import Any

from aiohttp import web
from apiserver import Api, Object


class Syncers:
    """One HTTPS server that is every shard of every run's syncer, and every evaluator, by server name, with each run's
    own certificate."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._contexts: dict[str, ssl.SSLContext] = {}
        self.statuses: dict[str, Object] = {}
        """Path `namespace/run/shard`, or `namespace/run/evaluator`, to the status; absent: 503."""
        self.orders: dict[str, list[int]] = {}
        """Path to the global steps of cuts that were ordered."""
        self.reluctant: set[str] = set()
        """Paths of shards whose cuts come to nothing."""
        self.callers: dict[str, str] = {}
        """Path to the identity that the last caller's certificate showed."""
        self.port = 0
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="syncers")
        self._thread.start()
        assert ready.wait(10)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        base = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        base.verify_mode = ssl.CERT_REQUIRED
        base.sni_callback = self._choose
        application = web.Application()
        application.router.add_get("/{namespace}/{run}/{shard}", self._answer)
        application.router.add_post("/{namespace}/{run}/{shard}", self._save)
        runner = web.AppRunner(application, access_log=None)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=base)
        self._loop.run_until_complete(site.start())
        self.port = runner.addresses[0][1]
        ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.run_until_complete(asyncio.sleep(0.05))
        self._loop.close()

    def _choose(self, connection: Any, name: str | None, _: ssl.SSLContext) -> int | None:
        context = self._contexts.get(name or "")
        if context is None:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        connection.context = context
        return None

    async def _answer(self, request: web.Request) -> web.Response:
        path = request.path.removeprefix("/")
        certificate = request.get_extra_info("peercert") or {}
        names = dict(certificate.get("subjectAltName", ()))
        self.callers[path] = names.get("URI", "")
        status = self.statuses.get(path)
        return web.json_response(status) if status is not None else web.Response(status=503)

    async def _save(self, request: web.Request) -> web.Response:
        """An order to save a cut, carried out at once."""
        path = request.path.removeprefix("/")
        status = self.statuses.get(path)
        if status is None:
            return web.Response(status=503)
        step = (await request.json())["cut"]
        self.orders.setdefault(path, []).append(step)
        if path not in self.reluctant:
            known = status.get("checkpoint", {})
            status["checkpoint"] = {**known, "uri": "gs://bucket/run", "current": True, "newestStep": step}
        return web.Response(status=202)

    def serve(
        self, namespace: str, run: str, status: Object, certificate_of: tuple[str, str] | None = None
    ) -> None:
        """Starts to answer for a shard of a run, with the run's own certificate or another run's."""
        shard = status.get("shard", 0)
        owner_namespace, owner = certificate_of or (namespace, run)
        host = f"{run}-syncer-{shard}.{run}-syncer.{namespace}.svc"
        self._serve(host, f"{namespace}/{run}/{shard}", status, owner_namespace, f"{owner}-syncer-tls")

    def serve_evaluator(self, namespace: str, run: str, status: Object) -> None:
        """Starts to answer for the run's evaluator."""
        host = f"{run}-evaluator-0.{run}-evaluator.{namespace}.svc"
        self._serve(host, f"{namespace}/{run}/evaluator", status, namespace, f"{run}-evaluator-tls")

    def _serve(self, host: str, path: str, status: Object, namespace: str, secret: str) -> None:
        data = self._api.get("Secret", namespace, secret)["data"]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=base64.b64decode(data["ca.crt"]).decode())
        with tempfile.NamedTemporaryFile() as file:
            file.write(base64.b64decode(data["tls.crt"]) + b"\n" + base64.b64decode(data["tls.key"]))
            file.flush()
            context.load_cert_chain(file.name)
        self.statuses[path] = status
        self._contexts[host] = context
