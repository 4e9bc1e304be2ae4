"""The way to the API server: the pod's service account, else the kubeconfig's current context."""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from atoll_operator.errors import CredentialsError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_SECONDS = 60.0
"""A token file is read again after this long: the kubelet rotates it."""


@dataclass(slots=True)
class Credentials:
    """Where the API server is and how to prove who we are."""

    server: str
    context: ssl.SSLContext
    token_file: Path | None = None
    static_token: str = ""
    _token: str = ""
    _read_at: float = float("-inf")

    def headers(self) -> dict[str, str]:
        """With the token of now."""
        if self.token_file is not None and time.monotonic() - self._read_at > TOKEN_SECONDS:
            self._token = self.token_file.read_text().strip()
            self._read_at = time.monotonic()
        token = self._token or self.static_token
        return {"Authorization": f"Bearer {token}"} if token else {}

    def expire(self) -> None:
        """After a 401 the file is read again at once."""
        self._read_at = float("-inf")


def load(environment: Mapping[str, str]) -> Credentials:
    """Raises CredentialsError."""
    if (SERVICE_ACCOUNT / "token").exists() and "KUBERNETES_SERVICE_HOST" in environment:
        context = ssl.create_default_context(cafile=str(SERVICE_ACCOUNT / "ca.crt"))
        return Credentials("https://kubernetes.default.svc", context, SERVICE_ACCOUNT / "token")
    path = environment.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    try:
        return _from_kubeconfig(Path(path))
    except (OSError, KeyError, StopIteration, TypeError, ssl.SSLError, yaml.YAMLError) as error:
        kind = type(error).__name__
        raise CredentialsError(
            f"no service account is mounted, and kubeconfig {path!r}: {kind}: {error}"
        ) from error


def _from_kubeconfig(path: Path) -> Credentials:
    config = yaml.safe_load(path.read_text())
    chosen = _named(config["contexts"], config["current-context"])["context"]
    cluster = _named(config["clusters"], chosen["cluster"])["cluster"]
    user = _named(config["users"], chosen["user"])["user"]
    context = ssl.create_default_context(
        cafile=_beside(path, cluster.get("certificate-authority")),
        cadata=_decoded(cluster.get("certificate-authority-data")),
    )
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate := user.get("client-certificate"):
        context.load_cert_chain(_beside(path, certificate) or "", _beside(path, user["client-key"]))
    elif data := user.get("client-certificate-data"):
        load_pair(context, base64.b64decode(data), base64.b64decode(user["client-key-data"]))
    token_file = user.get("tokenFile")
    return Credentials(
        server=cluster["server"].rstrip("/"),
        context=context,
        token_file=Path(token_file) if token_file else None,
        static_token=user.get("token", ""),
    )


def load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Loads a certificate and its key, both PEM. The ssl module takes files only; ours is gone at once."""
    handle, name = tempfile.mkstemp(prefix="atoll-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(certificate + b"\n" + key)
        context.load_cert_chain(name)
    finally:
        os.unlink(name)


def _named(items: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(item for item in items if item["name"] == name)


def _beside(path: Path, name: str | None) -> str | None:
    return str(path.parent / name) if name else None


def _decoded(data: str | None) -> str | None:
    return base64.b64decode(data).decode() if data else None
