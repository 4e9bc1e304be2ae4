"""The real Kueue manager with its CRDs and webhooks, for a control plane.

Only its integration of plain pods is enabled. The API server calls it by URL on the loopback address.
"""

from __future__ import annotations

import base64
import ipaddress
import json
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from atoll_local.catalogue import PROGRAMS
from atoll_local.controlplane import ControlPlane, free_port
from atoll_local.gobuild import module_folder
from atoll_local.kubectl import ESTABLISHED
from atoll_local.pki import valid_year
from atoll_local.process import Daemon, Startable
from atoll_local.programs import find

Object = dict[str, Any]
NAMESPACE = "kueue-system"
SERVICE = "kueue-webhook-service"
"""Kueue derives the names of its webhook configurations from this name. Its certificate has the name too."""
SECRET = "kueue-webhook-server-cert"
AUTHORITY = "kueue-ca"
"""Kueue replaces a certificate unless its authority has this name and an RSA key in PKCS #1."""
READY_SECONDS = 180.0
_WEBHOOKS = {"MutatingWebhookConfiguration": "mutating", "ValidatingWebhookConfiguration": "validating"}
_OTHERS = ["kube-system", NAMESPACE]
"""Namespaces in which Kueue ignores pods by default."""


class Kueue(Startable):
    """One Kueue manager; use it as a context manager, or `start` and `stop`."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._folder = plane.folder / "kueue"
        self._port = free_port()
        self.daemon = Daemon("kueue", plane.folder / "run")

    def start(self) -> None:
        """Installs it and waits until it is ready and all its definitions are served. Raises `ClusterError` if the API
        server refused a part of it, or it ended, and `HostError` if the program cannot be obtained."""
        program = find("kueue", self._plane.progress)
        parts = module_folder(PROGRAMS["kueue"]) / "config" / "components"
        self._apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        bundle = self._certificate()
        self._define(parts / "crd" / "bases", bundle)
        health = free_port()
        config = self._folder / "config.yaml"
        config.write_text(yaml.safe_dump(self._configuration(health), sort_keys=False))
        self.daemon.start(
            [
                str(program),
                f"--config={config}",
                f"--kubeconfig={self._plane.kubeconfig}",
                "--zap-log-level=2",
            ]
        )
        manifests = (parts / "webhook/manifests.yaml").read_text()
        self._apply(*(self._webhooks(body, bundle) for body in yaml.safe_load_all(manifests)))
        self.daemon.await_answer(f"http://127.0.0.1:{health}/readyz", READY_SECONDS)

    def stop(self) -> None:
        self.daemon.stop()

    def _define(self, folder: Path, bundle: str) -> None:
        """Applies the CRDs and lets Kueue convert their versions."""
        names = [".".join(reversed(path.stem.split("_"))) for path in sorted(folder.glob("*.yaml"))]
        webhook = {"conversionReviewVersions": ["v1"], "clientConfig": self._client("/convert", bundle)}
        conversion = {"spec": {"conversion": {"strategy": "Webhook", "webhook": webhook}}}
        self._plane.kubectl("apply", "--server-side", "-f", str(folder))
        self._plane.kubectl("patch", "crd", *names, "--type=merge", "-p", json.dumps(conversion))
        self._plane.kubectl("wait", ESTABLISHED, "crd", *names, "--timeout=60s")

    def _certificate(self) -> str:
        """Creates Kueue's certificate in its Secret and returns the bundle for its callers."""
        cert, key = _self_signed(AUTHORITY, f"{SERVICE}.{NAMESPACE}.svc")
        for name, content in (("tls.crt", cert), ("tls.key", key)):
            path = self._folder / name
            path.touch(mode=0o600)
            path.write_bytes(content)
        data = {"ca.crt": cert, "ca.key": key, "tls.crt": cert, "tls.key": key}
        self._apply(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": SECRET, "namespace": NAMESPACE},
                "data": {name: _base64(content) for name, content in data.items()},
            }
        )
        return _base64(cert)

    def _configuration(self, health: int) -> Object:
        return {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": NAMESPACE,
            "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": "127.0.0.1", "port": self._port, "certDir": str(self._folder)},
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"qps": 300, "burst": 500},
            "integrations": {"frameworks": ["pod"]},
            # Kueue's server of pending workloads needs an aggregated API and another port.
            "featureGates": {"VisibilityOnDemand": False},
        }

    def _client(self, path: str, bundle: str) -> Object:
        return {"url": f"https://127.0.0.1:{self._port}{path}", "caBundle": bundle}

    def _webhooks(self, body: Object, bundle: str) -> Object:
        """Reduce a webhook configuration to pods and Kueue's own objects, and call the webhooks by URL."""
        hooks = []
        for hook in body["webhooks"]:
            if not {"", "kueue.x-k8s.io"} & {group for rule in hook["rules"] for group in rule["apiGroups"]}:
                continue
            hook["clientConfig"] = self._client(hook["clientConfig"]["service"]["path"], bundle)
            if hook["name"].endswith("pod.kb.io"):
                skipped = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": _OTHERS}
                hook["namespaceSelector"] = {"matchExpressions": [skipped]}
            hooks.append(hook)
        name = f"kueue-{_WEBHOOKS[body['kind']]}-webhook-configuration"
        return {**body, "metadata": {"name": name}, "webhooks": hooks}

    def _apply(self, *bodies: Object) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": list(bodies)}
        self._plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", body=listed)


def _self_signed(*names: str) -> tuple[bytes, bytes]:
    """A self-signed certificate for these names and the loopback address, and its key; both PEM."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    hosts: list[x509.GeneralName] = [x509.DNSName(host) for host in names]
    hosts.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    cert = (
        valid_year(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
    return cert.public_bytes(encoding), key.private_bytes(encoding, form, serialization.NoEncryption())


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
