"""`atoll demo --context`: what it does to a cluster that others use, with programs that note what they are told."""

from __future__ import annotations

import http.server
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from atoll_cli.__main__ import main
from atoll_cli.demo.installation import Chart, Installation
from atoll_cli.demo.place import ContextPlace
from atoll_cli.errors import CommandError
from atoll_cli.kubectl import Kubectl

KUBECTL = """#!/bin/sh
cd {folder}
echo "kubectl $*" >> calls
case "$2 $3 $4" in
  "get --raw /readyz") echo ok;;
  "get namespace "*) cat "namespace-$4" 2>/dev/null;;
  "get crd "*) cat crd 2>/dev/null;;
  "get deployments "*) cat operators;;
  "get trainingruns"*) cat runs;;
esac
true
"""
HELM = """#!/bin/sh
cd {folder}
echo "helm $*" >> calls
if [ "$1" = list ]; then cat release 2>/dev/null; fi
true
"""
IMAGES = ["--operator-image", "mine/operator:1", "--runtime-image", "mine/runtime:1"]
COMMAND = ["demo", "--context", "prod", "--bucket", "a-typo", *IMAGES]
CHANGES = {"create", "apply", "delete", "patch", "install", "upgrade", "uninstall"}


class Nothing(http.server.BaseHTTPRequestHandler):
    """A store in which no bucket is called so."""

    def _refuse(self) -> None:
        body = b'{"error": {"code": 404, "message": "The specified bucket does not exist."}}'
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = _refuse

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def store() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Nothing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """What the two programs find, and what they were told in `calls`."""
    listing = {"operators": [], "runs": []}
    for name, items in listing.items():
        (tmp_path / name).write_text(json.dumps({"items": items}))
    for name, script in (("kubectl", KUBECTL), ("helm", HELM)):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(script.format(folder=tmp_path))
        program.chmod(0o755)
    return tmp_path


@pytest.fixture
def demo(
    cluster: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[[], tuple[int, str, str]]]:
    """Runs it with that cluster; exit status, output, errors."""
    for name in ("ATOLL_KUBECTL", "ATOLL_HELM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{cluster / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("ATOLL_CACHE", str(cluster / "cache"))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def call() -> tuple[int, str, str]:
        status = main(COMMAND)
        return status, *capsys.readouterr()

    yield call
    for number, handler in handlers.items():
        signal.signal(number, handler)


def told(cluster: Path) -> list[str]:
    return (cluster / "calls").read_text().splitlines()


def changes(cluster: Path) -> list[str]:
    return [call for call in told(cluster) if CHANGES & set(call.split())]


def somewhere(namespace: str) -> str:
    return json.dumps({"items": [{"metadata": {"namespace": namespace, "name": "x"}}]})


def test_a_demo_that_fails_before_it_installs_changes_nothing_on_the_cluster(
    cluster: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{cluster / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", store)
    monkeypatch.setenv("NO_GCE_CHECK", "true")  # Google's client looks for a metadata server, for seconds
    command = [sys.executable, "-m", "atoll_cli", *COMMAND, "--json", str(cluster / "out.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "gs://a-typo/atoll-demo/" in done.stderr
    assert changes(cluster) == []
    assert "removing" not in done.stdout
    assert json.loads((cluster / "out.json").read_text())["passed"] is False


@pytest.mark.parametrize(
    ("files", "words"),
    [
        pytest.param({"release": "atoll\n"}, "a release 'atoll' in 'atoll-system'", id="release"),
        pytest.param(
            {"namespace-atoll-demo": "namespace/atoll-demo\n"}, "a namespace 'atoll-demo'", id="namespace"
        ),
        pytest.param({"operators": somewhere("ml")}, "an operator in 'ml'", id="operator-elsewhere"),
        pytest.param(
            {"crd": "crd/x\n", "runs": somewhere("research")},
            "a TrainingRun in 'research'",
            id="runs-without-operator",
        ),
        pytest.param(
            {"release": "atoll\n", "operators": somewhere("atoll-system")},
            "'prod' has a release 'atoll' in 'atoll-system' already",
            id="release-with-its-operator",
        ),
    ],
)
def test_a_cluster_that_has_an_atoll_is_refused_and_left_as_it_is(
    demo, cluster: Path, files: dict[str, str], words: str
) -> None:
    for name, content in files.items():
        (cluster / name).write_text(content)
    status, out, err = demo()
    assert status == 2
    assert words in err
    assert err.count("\n") == 1
    assert changes(cluster) == []
    assert "[2/" not in out, "the bucket is asked after the cluster"


def test_the_programs_of_the_user_are_used_and_told_the_context(demo, cluster: Path) -> None:
    (cluster / "release").write_text("atoll\n")
    demo()
    for call in told(cluster):
        assert "--context=prod" in call.split() or "--kube-context=prod" in call.split()
    assert not (cluster / "cache").exists()


def test_without_helm_one_sentence_says_so(demo, cluster: Path) -> None:
    (cluster / "bin" / "helm").unlink()
    status, _, err = demo()
    assert status == 2
    assert err == "atoll: helm is not on PATH: install it, or name it with ATOLL_HELM=/path/to/helm\n"


def test_what_could_not_be_removed_is_told_with_the_commands_that_do_it(cluster: Path) -> None:
    place = ContextPlace("prod", {})
    place.helm = cluster / "bin" / "helm"
    place.kubectl = Kubectl(program=cluster / "bin" / "kubectl", context="prod")
    one = Installation(place, Chart(path=Path("chart")), "one")
    one.make()
    (cluster / "bin" / "helm").write_text("#!/bin/sh\necho 'Error: no way' >&2; exit 1\n")
    with pytest.raises(CommandError) as raised:
        one.remove()
    assert str(raised.value) == (
        "helm list failed: Error: no way; by hand: helm --kube-context prod uninstall atoll --namespace "
        "atoll-system; kubectl --context prod delete namespace --selector atoll.dev/demo=one"
    )
    assert changes(cluster)[-1].endswith("delete namespace --selector atoll.dev/demo=one --timeout=120s")
