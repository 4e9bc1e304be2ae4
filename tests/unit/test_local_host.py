"""What the local cluster reports about a machine on which it cannot run, its ports, and its device plugin."""

from __future__ import annotations

import os
import socket
from collections import namedtuple
from pathlib import Path

import pytest

from atoll_local import host
from atoll_local.controlplane import free_port
from atoll_local.deviceplugin import field
from atoll_local.errors import HostError

Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(
    ("platform", "user", "free", "words"),
    [
        ("darwin", 0, 2**40, r"needs Linux \(this is darwin\)"),
        ("linux", 1000, 2**40, "needs root"),
        ("linux", 0, 3 * 2**30, r"has 3\.0 GiB of free disk, the local cluster needs 12"),
    ],
)
def test_a_machine_that_cannot_be_used_is_refused_in_one_sentence(
    platform: str, user: int, free: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr("os.geteuid", lambda: user)
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(2**40, 2**40, free))
    with pytest.raises(HostError, match=words):
        host.check_machine()


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(HostError, match=f"port {taken.getsockname()[1]}, which it needs, is taken"):
            host.check_port(taken.getsockname()[1], "it")


def test_missing_packages_without_apt_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(HostError, match=r"no apt-get to install them: containerd, runc"):
        host.install(lambda _: None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(HostError, match=r"no apt-get to install them: iproute2, ethtool, util-linux$"):
        host.prepare_namespaces(lambda _: None)


def test_a_protobuf_field_is_longer_than_one_length_byte() -> None:
    assert field(1, "a" * 300) == b"\x0a\xac\x02" + b"a" * 300


def test_no_free_port_is_one_that_the_kernel_gives_to_connections() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = {free_port() for _ in range(50)}
    assert len(ports) > 40
    assert max(ports) < first or first <= 20000
