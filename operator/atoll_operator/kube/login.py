"""Login to an API server: the pod's service account, else the current context of the kubeconfig."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from atoll_operator.kube.errors import CredentialsError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_SECONDS = 10.0
"""How long a token is used before it is asked for again: the kubelet rotates the file, exec plugins expire."""


@dataclass(slots=True)
class Credentials:
    """Address of an API server and how to log in there. Headers may be read in any thread."""

    server: str
    context: ssl.SSLContext
    authorization: Callable[[], str] = str
    """Returns the value of the header `Authorization`, renewed where it has expired; empty: none."""
    _value: str = ""
    _read_at: float = float("-inf")

    def headers(self) -> dict[str, str]:
        if time.monotonic() - self._read_at > TOKEN_SECONDS:
            self._value, self._read_at = self.authorization(), time.monotonic()
        return {"Authorization": self._value} if self._value else {}

    def expire(self) -> None:
        """Read the token again for the next request; call this after an answer 401."""
        self._read_at = float("-inf")


def bearer(token_file: Path) -> Callable[[], str]:
    """Reads the token from a file each time."""
    return lambda: f"Bearer {token_file.read_text().strip()}"


def load(environment: Mapping[str, str]) -> Credentials:
    """Raises CredentialsError."""
    if (SERVICE_ACCOUNT / "token").exists() and "KUBERNETES_SERVICE_HOST" in environment:
        context = ssl.create_default_context(cafile=str(SERVICE_ACCOUNT / "ca.crt"))
        return Credentials("https://kubernetes.default.svc", context, bearer(SERVICE_ACCOUNT / "token"))
    path = environment.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    # Imported here: the client takes 40 MiB, which a pod with a service account does not need.
    from kubernetes import client, config

    try:
        found = client.Configuration()
        config.load_kube_config(config_file=path, client_configuration=found)
        context = ssl.create_default_context(cafile=found.ssl_ca_cert)
        if not found.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if found.cert_file:
            context.load_cert_chain(found.cert_file, found.key_file)
    except (config.ConfigException, OSError, KeyError, TypeError, ValueError) as error:
        problem = f"no service account is mounted, and kubeconfig {path!r}: {type(error).__name__}: {error}"
        raise CredentialsError(problem) from error
    return Credentials(
        found.host.rstrip("/"), context, lambda: str(found.get_api_key_with_prefix("BearerToken") or "")
    )
