"""Checks and prepares this machine for a cluster."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from atoll_local.controlplane import SERVICE_RANGE
from atoll_local.errors import HostError
from atoll_local.network import Network
from atoll_local.paths import cache_dir, states_dir
from atoll_local.process import run
from atoll_local.programs import Progress

FREE_GIB = 12
"""Programs and Go's caches take about 6 GiB, images 3, nodes and checkpoints the rest."""

DEBIAN_PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
    "sysctl": "procps",
    "mount": "mount",
}
"""Debian packages by program."""
NAMESPACE_PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "bridge": "iproute2",
    "ethtool": "ethtool",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setpriv": "util-linux",
}
"""The same for network namespaces with links of their own."""
CNI_DIR = Path("/usr/lib/cni")
INSTALL_TIMEOUT = 900.0


def check_machine() -> None:
    """Checks system, user and disk. Raises `HostError` if this machine cannot run a cluster."""
    if sys.platform != "linux":
        raise HostError(f"the local cluster needs Linux (this is {sys.platform})")
    if os.geteuid() != 0:
        raise HostError(
            "the local cluster needs root (it makes network namespaces and mounts); run it with sudo"
        )
    for folder in (cache_dir(), states_dir()):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(there).free / 2**30
        if free < FREE_GIB:
            raise HostError(f"{folder} has {free:.1f} GiB of free disk, the local cluster needs {FREE_GIB}")


def check_addresses(network: Network, ports: Mapping[int, str]) -> None:
    """Raises `HostError` if the network or one of `ports`, which map to their purpose, is in use."""
    if shutil.which("ip") and (taken := network.taken(SERVICE_RANGE)):
        raise HostError(
            f"{taken} is there already, and a machine has room for one cluster: take down the cluster that it belongs "
            "to, or remove it"
        )
    for port, purpose in ports.items():
        check_port(port, purpose)


def check_port(port: int, purpose: str, address: str = "0.0.0.0") -> None:
    """Raises `HostError` if something listens on `port`."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            raise HostError(f"port {port}, which {purpose} needs, is taken: end what listens there") from None


def install(progress: Progress) -> None:
    """Installs what a cluster needs. Raises `HostError` if there is no apt, or it failed."""
    packages = _missing(DEBIAN_PACKAGES | NAMESPACE_PACKAGES)
    if not (CNI_DIR / "ptp").exists():
        packages.append("containernetworking-plugins")
    _install(packages, progress)


def prepare_namespaces(progress: Progress) -> None:
    """Installs what network namespaces need. Raises `HostError` without root, without apt, or if apt failed."""
    if os.geteuid() != 0:
        raise HostError("network namespaces need root; run it with sudo")
    _install(_missing(NAMESPACE_PACKAGES), progress)


def _missing(packages: Mapping[str, str]) -> list[str]:
    return list(dict.fromkeys(name for program, name in packages.items() if shutil.which(program) is None))


def _install(packages: Sequence[str], progress: Progress) -> None:
    """Installs Debian packages without starting their services."""
    if not packages:
        return
    if shutil.which("apt-get") is None:
        raise HostError(f"missing on this machine and no apt-get to install them: {', '.join(packages)}")
    progress(f"installing {', '.join(packages)}")
    # A policy-rc.d with exit status 101 keeps packages from starting daemons. Nodes run their own containerd.
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *packages]):
            run(["apt-get", *command], INSTALL_TIMEOUT, environment={"DEBIAN_FRONTEND": "noninteractive"})
    finally:
        if ours:
            policy.unlink(missing_ok=True)
