"""Login to an API server: the pod's service account, else the current context of the kubeconfig."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from kubernetes import client, config

from atoll_operator.kube.errors import CredentialsError


@dataclass(frozen=True, slots=True)
class Credentials:
    """Address of an API server and how to log in there."""

    server: str
    context: ssl.SSLContext
    headers: Callable[[], Mapping[str, str]] = dict
    """`Authorization`, if there is a token; it is renewed after it expires. May be called in any thread."""


def load(environment: Mapping[str, str]) -> Credentials:
    """Raises CredentialsError."""
    path = environment.get("KUBECONFIG") or config.KUBE_CONFIG_DEFAULT_LOCATION
    found = client.Configuration()
    try:
        try:
            config.load_incluster_config(found)
            found.host = "https://kubernetes.default.svc"
        except config.ConfigException:
            config.load_kube_config(path, client_configuration=found)
        context = ssl.create_default_context(cafile=found.ssl_ca_cert)
        if not found.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if found.cert_file:
            context.load_cert_chain(found.cert_file, found.key_file)
    except (config.ConfigException, OSError, KeyError, TypeError, ValueError) as error:
        problem = f"no service account is mounted, and kubeconfig {path!r}: {type(error).__name__}: {error}"
        raise CredentialsError(problem) from error

    @lru_cache(maxsize=1)
    def headers(second: int) -> Mapping[str, str]:  # getting it for each request costs 5 % of its time
        token = str(found.get_api_key_with_prefix("BearerToken") or "").strip()
        return {"Authorization": token} if token else {}

    return Credentials(found.host.rstrip("/"), context, lambda: headers(int(time.monotonic())))
