"""Syncers and evaluators played by the test, with the certificates that the operator issued."""

from __future__ import annotations

import base64
import ssl
from typing import Any

from aiohttp import web
from answering import LoopThread, answering, pod_context
from apiserver import Api, Object


class Syncers:
    """One HTTPS server for every shard of every run's syncer and every evaluator. It chooses the run's certificate by
    server name."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._contexts: dict[str, ssl.SSLContext] = {}
        self.statuses: dict[str, Object] = {}
        """Path `namespace/run/shard` or `namespace/run/evaluator` to the status. Other paths are answered with 503."""
        self.orders: dict[str, list[int]] = {}
        """Path to the global steps of cuts that were ordered."""
        self.callers: dict[str, str] = {}
        """Path to the identity that the last caller's certificate showed."""
        base = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        base.verify_mode = ssl.CERT_REQUIRED
        base.sni_callback = self._choose
        self._thread = LoopThread("syncers")
        self.address = self._thread.enter(answering(self._handle, base))

    def close(self) -> None:
        self._thread.close()

    def _choose(self, connection: Any, name: str | None, _: ssl.SSLContext) -> int | None:
        context = self._contexts.get(name or "")
        if context is None:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        connection.context = context
        return None

    async def _handle(self, request: web.Request) -> web.Response:
        """Answer with the status, or carry out an order to save a cut at once."""
        path = request.path.removeprefix("/")
        certificate = request.get_extra_info("peercert") or {}
        names = dict(certificate.get("subjectAltName", ()))
        self.callers[path] = names.get("URI", "")
        if (status := self.statuses.get(path)) is None:
            return web.Response(status=503)
        if request.method == "GET":
            return web.json_response(status)
        step = (await request.json())["cut"]
        self.orders.setdefault(path, []).append(step)
        saved = {"uri": "gs://bucket/run", "current": True, "newestStep": step}
        status["checkpoint"] = status.get("checkpoint", {}) | saved
        return web.Response(status=202)

    def serve(self, namespace: str, run: str, status: Object) -> None:
        shard = status.get("shard", 0)
        host = f"{run}-syncer-{shard}.{run}-syncer.{namespace}.svc"
        self._serve(host, f"{namespace}/{run}/{shard}", status, namespace, f"{run}-syncer-tls")

    def serve_evaluator(self, namespace: str, run: str, status: Object) -> None:
        host = f"{run}-evaluator-0.{run}-evaluator.{namespace}.svc"
        self._serve(host, f"{namespace}/{run}/evaluator", status, namespace, f"{run}-evaluator-tls")

    def _serve(self, host: str, path: str, status: Object, namespace: str, secret: str) -> None:
        data = self._api.get("Secret", namespace, secret)["data"]
        files = (base64.b64decode(data[name]) for name in ("ca.crt", "tls.crt", "tls.key"))
        self.statuses[path] = status
        self._contexts[host] = pod_context(*files)
