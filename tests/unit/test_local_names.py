"""A cluster's name leads to its own folder. What does not belong to a cluster is never removed."""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

import pytest
from commands import executable

from atoll_cli.__main__ import main as atoll
from atoll_cli.demo.cluster import DemoCluster
from atoll_local import cgroups, host
from atoll_local.__main__ import main
from atoll_local.bucket import FakeGcs
from atoll_local.cluster import Cluster
from atoll_local.controlplane import ControlPlane
from atoll_local.errors import HostError
from atoll_local.host import check_addresses
from atoll_local.machine import TEMPLATES, Machine
from atoll_local.network import Network

NOT_NAMES = ("", ".", "..", "../../home", "/root", "a/b", "-a", "A", "a.b", "a" * 32, "a\n")


def refuse(*_: object) -> None:
    raise HostError("this machine is refused")


@pytest.fixture(autouse=True)
def removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a command removes. Nothing on this machine is really removed."""
    calls: list[str] = []
    monkeypatch.setenv("ATOLL_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("KUBECONFIG", "/nowhere")

    def stub(owner: Any, name: str, said: str) -> None:
        monkeypatch.setattr(owner, name, lambda *_, **__: calls.append(said))

    stub(Network, "down", "network")
    stub(cgroups, "remove", "cgroups")
    stub(FakeGcs, "stop", "bucket")
    stub(ControlPlane, "stop", "control plane")
    stub(Machine, "stop", "machine")
    for name in ("host.check_machine", "host.install", "cluster.build_images"):
        monkeypatch.setattr(f"atoll_local.{name}", lambda *_: None)
    monkeypatch.setattr(host, "check_addresses", refuse)  # after it a cluster would start
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return calls


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The state of a cluster called `one`."""
    folder = tmp_path / "state" / "one"
    (folder / "nodes").mkdir(parents=True)
    (folder / "cluster.json").write_text('{"atoll.dev/runtime:1": "key"}')
    return folder


@pytest.fixture
def busy(there: Path) -> Iterator[None]:
    """Another command holds the lock of this machine's clusters."""
    handle = os.open(there.parent, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    yield
    os.close(handle)


@pytest.mark.parametrize("name", NOT_NAMES)
def test_invalid_name_is_refused_and_nothing_is_removed(
    name: str, there: Path, removed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("up", "down", "status"):
        assert main([command, f"--name={name}"]) == 2
    assert atoll(["demo", f"--name={name}"]) == 2
    assert capsys.readouterr().err.count(f": --name {name!r}: a lower-case letter or digit is wanted") == 4
    assert removed == [] and there.exists()


def test_down_of_a_missing_cluster_changes_nothing(
    there: Path, removed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    other = there.with_name("other")
    other.mkdir()
    (other / "file").write_text("of someone")
    for name in ("other", "nobody"):
        assert main(["down", "--name", name]) == 0
        assert f"there is no cluster called {name}\n" in capsys.readouterr().err
    assert removed == [] and there.exists() and (other / "file").exists()


def test_down_removes_everything_or_names_what_it_cannot_remove_and_can_be_repeated(
    there: Path, removed: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (there / "a file").write_text("")
    (there / "nodes" / "mounted").mkdir()

    def rmdir(path: str, **options: Any) -> None:
        if str(path).endswith("mounted"):
            raise OSError(errno.EBUSY, "Device or resource busy", str(path))
        real(path, **options)

    real = os.rmdir
    with monkeypatch.context() as context:
        context.setattr(os, "rmdir", rmdir)
        assert main(["down", "--name", "one"]) == 1
        told = capsys.readouterr().err
        assert told.startswith(f"error: {there} stays: ") and "busy" in told and "mounted" in told
        assert (there / "cluster.json").exists()
    removed.clear()
    assert main(["down", "--name", "one"]) == 0
    assert removed == ["bucket", *["machine"] * 5, "control plane", "cgroups", "network"]
    assert list(there.parent.iterdir()) == []


def test_down_without_root_removes_nothing_and_says_what_to_do(
    there: Path, removed: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert main(["down", "--name", "one"]) == 1
    assert capsys.readouterr().err.startswith(f"error: {there} stays: its cluster has processes, mounts and ")
    assert removed == [] and (there / "cluster.json").exists()
    assert main(["down", "--name", "nobody"]) == 0


def test_up_removes_no_folder_of_anything_but_a_cluster(there: Path, removed: list[str]) -> None:
    (there / "cluster.json").unlink()
    with pytest.raises(HostError, match="is not empty, and is no cluster's that can be removed"):
        Cluster("one").up()
    assert (there / "nodes").exists() and removed == []


def test_a_nodes_services_are_found_in_folders_with_spaces_in_their_names() -> None:
    script = Template((TEMPLATES / "init.sh").read_text())
    values = {name: f"/a b/{name}" for name in script.get_identifiers()}
    words = shlex.split(script.substitute(values), comments=True)
    for name in ("root/kubelet", "root/containerd.toml", "kubelet", "proxy", "python", "root/tpu.json"):
        assert f"/a b/{name}" in words
    assert "--kubeconfig=/a b/root/kubelet.conf" in words and "--config=/a b/root/proxy.yaml" in words


@pytest.mark.parametrize("command", ["up", "down"])
@pytest.mark.usefixtures("busy")
def test_a_second_command_that_changes_a_cluster_is_refused(
    command: str, there: Path, removed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--name", "one"]) == 2
    assert "another demo, `up` or `down` runs on this machine" in capsys.readouterr().err
    with pytest.raises(HostError, match="another demo, `up` or `down` runs on this machine"):
        DemoCluster("one", there, lambda _: None).up()
    assert removed == [] and there.exists()


def test_refused_demo_leaves_an_existing_cluster(
    there: Path, removed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "check_machine", refuse)
    cluster = DemoCluster("one", there, lambda _: None)
    with pytest.raises(HostError, match="this machine is refused"):
        cluster.up()
    cluster.leave()
    assert removed == [] and (there / "cluster.json").exists()


def test_an_interrupted_command_says_in_one_line_how_to_remove_what_it_has_started(
    there: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: Cluster) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Cluster, "up", interrupted)
    assert main(["up", "--name", "one"]) == 130
    assert capsys.readouterr().err == "interrupted: `down` removes what is left of a cluster\n"


def test_second_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr(Network, "taken", lambda *_: "the bridge atoll0")
    with pytest.raises(HostError, match="the bridge atoll0 is there already, and a machine has room for one"):
        check_addresses(Network(), {})


def test_down_leaves_the_network_to_another_cluster_that_runs(
    there: Path, removed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`one` stayed after a reboot; `two` was started since."""
    two = there.with_name("two")
    two.mkdir()
    (two / "cluster.json").write_text("{}")
    runs = property(lambda machine: 1 if machine.cluster == "two" else None)
    with monkeypatch.context() as context:
        context.setattr(Machine, "pid", runs)
        assert main(["down", "--name", "one"]) == 0
    assert "network" not in removed and not there.exists() and two.exists()
    assert main(["down", "--name", "two"]) == 0
    assert "network" in removed


@pytest.mark.parametrize(
    ("script", "answers"), [("echo ok", True), ("echo not ready; exit 1", False), ("exec sleep 60", False)]
)
def test_a_cluster_whose_api_server_does_not_answer_does_not_run(
    script: str, answers: bool, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOLL_KUBECTL", str(executable(there / "kubectl", script)))
    monkeypatch.setattr(Machine, "pid", property(lambda _: 1))
    monkeypatch.setattr("atoll_local.cluster.ANSWER_SECONDS", 5.0 if answers else 0.5, raising=False)
    cluster = Cluster("one")
    cluster.kubeconfig.parent.mkdir()
    cluster.kubeconfig.write_text("")
    assert cluster.running() is answers
    assert main(["status", "--name", "one"]) == 0


def test_a_demo_that_replaces_an_older_cluster_and_fails_removes_what_it_has_started(
    there: Path, removed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "running", lambda _: True)
    monkeypatch.setattr(host, "check_addresses", lambda *_: None)
    monkeypatch.setattr("atoll_local.cluster.find_all", lambda *_: {})
    monkeypatch.setattr("atoll_local.cluster.made_from", lambda: {"atoll.dev/runtime:1": "another key"})
    monkeypatch.setattr("atoll_local.cluster.install_images", refuse)
    cluster = DemoCluster("one", there, lambda _: None)
    with pytest.raises(HostError, match="this machine is refused"):
        cluster.up()
    assert there.exists()
    cluster.leave()
    assert not there.exists()


def test_cache_that_is_not_a_folder_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cache").write_text("")
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "")
    assert main(["programs"]) == 1
    (told,) = capsys.readouterr().err.splitlines()
    assert told == f"error: [Errno 20] Not a directory: '{tmp_path / 'cache' / 'bin'}'"
