"""The way to the API server: the pod's service account, else the kubeconfig's current context."""

from __future__ import annotations

import os
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from atoll_operator.kube.errors import CredentialsError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_SECONDS = 60.0
"""A token file is read again after this long: the kubelet rotates it."""
LOGIN_SECONDS = 10.0
"""A kubeconfig's client is asked again after this long: it takes half a millisecond, and it knows what has expired."""


@dataclass(slots=True)
class Credentials:
    """Where the API server is and how to prove who we are."""

    server: str
    context: ssl.SSLContext
    token_file: Path | None = None
    authorization: Callable[[], str] | None = None
    """The header's value of now; the client renews what has expired."""
    _value: str = ""
    _read_at: float = float("-inf")

    def headers(self) -> dict[str, str]:
        """With the token of now."""
        age = time.monotonic() - self._read_at
        if self.token_file is not None and age > TOKEN_SECONDS:
            self._keep(f"Bearer {self.token_file.read_text().strip()}")
        elif self.authorization is not None and age > LOGIN_SECONDS:
            self._keep(self.authorization())
        return {"Authorization": self._value} if self._value else {}

    def _keep(self, value: str) -> None:
        self._value, self._read_at = value, time.monotonic()

    def expire(self) -> None:
        """After a 401 the token is read again at once."""
        self._read_at = float("-inf")


def load(environment: Mapping[str, str]) -> Credentials:
    """Raises CredentialsError."""
    if (SERVICE_ACCOUNT / "token").exists() and "KUBERNETES_SERVICE_HOST" in environment:
        context = ssl.create_default_context(cafile=str(SERVICE_ACCOUNT / "ca.crt"))
        return Credentials("https://kubernetes.default.svc", context, SERVICE_ACCOUNT / "token")
    path = environment.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    from kubernetes.config import ConfigException

    try:
        return _from_kubeconfig(path)
    except (ConfigException, OSError, KeyError, TypeError, ValueError) as error:
        kind = type(error).__name__
        raise CredentialsError(
            f"no service account is mounted, and kubeconfig {path!r}: {kind}: {error}"
        ) from error


def _from_kubeconfig(path: str) -> Credentials:
    """The current context, with every way to log in that the official client knows (exec plugins among them)."""
    # Imported here: the client takes 40 MiB, which a pod with a service account need not pay.
    from kubernetes import client, config

    found = client.Configuration()
    config.load_kube_config(config_file=path, client_configuration=found)
    context = ssl.create_default_context(cafile=found.ssl_ca_cert)
    if not found.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if found.cert_file:
        context.load_cert_chain(found.cert_file, found.key_file)

    def authorization() -> str:
        return str(found.get_api_key_with_prefix("BearerToken") or "")

    return Credentials(server=found.host.rstrip("/"), context=context, authorization=authorization)


def load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Loads a certificate and its key, both PEM. The ssl module takes files only; ours is gone at once."""
    handle, name = tempfile.mkstemp(prefix="atoll-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(certificate + b"\n" + key)
        context.load_cert_chain(name)
    finally:
        os.unlink(name)
