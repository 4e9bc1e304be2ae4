"""What the command line refuses, and how it ends: by Ctrl-C, with a full disk, or without a package."""

from __future__ import annotations

import io
import itertools
import logging
import os
import shlex
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import ended, executable

from atoll_cli import loggers
from atoll_cli.__main__ import main
from atoll_cli.demo.console import Console
from atoll_cli.demo.evaluation import evaluate
from atoll_cli.errors import OTHERS, CommandError
from atoll_cli.kubectl import Kubectl, KubectlError
from atoll_runtime.checkpoint import Bucket
from atoll_runtime.contract import DataSpec

ROOT = Path(__file__).resolve().parents[2]
ATOLL = (sys.executable, "-m", "atoll_cli")


WRONG = (
    ("", "the following arguments are required: COMMAND; see atoll --help"),
    ("nothing", "invalid choice: 'nothing'"),
    ("--nothing version", "unrecognized arguments: --nothing; see atoll --help"),
    ("simulate", "the following arguments are required: QUESTION; see atoll simulate --help"),
    (
        "simulate goodput --chips",
        "argument --chips: expected one argument; see atoll simulate goodput --help",
    ),
    ("simulate goodput extra", "unrecognized arguments: extra; see atoll simulate goodput --help"),
    ("simulate plan", "the following arguments are required: RUN.yaml; see atoll simulate plan --help"),
    ("bench link --case", "argument --case: expected one argument; see atoll bench link --help"),
    ("status --watch", "--watch needs a RUN"),
    ("status ''", "'': NAME or trun/NAME is wanted"),
    ("ledger ''", "'': NAME or trun/NAME is wanted"),
    ("status trun/", "'trun/': NAME or trun/NAME is wanted"),
    ("status r -A", "--all-namespaces lists every run"),
    ("demo --json /no/such/folder/out.json", "there is no folder /no/such/folder"),
    ("demo --json /", "--json '/': a file is wanted, not a folder"),
    ("bench merge --parameters 9000000000", "--parameters 9000000000: at most"),
    ("bench merge --fragments 1000", "--fragments: "),
    ("bench parity --device --reduced", "--device: not with --reduced, which has a size of its own"),
    ("bench parity --size=moe-120k --case=a", "--size 'moe-120k', --case 'a': there is no such trial"),
    ("export file://rel/x --out x", "CHECKPOINT_URI 'file://rel/x': file:///absolute/path"),
    ("export gs://b/x --out x --data rel", "--data 'rel': gs://bucket/path or file:///"),
    (
        "export gs://b/x --out x --max-shard-size abc",
        "--max-shard-size 'abc': a size such as 500MB is wanted",
    ),
    ("export gs://b/x --out ''", "--out '': a path on this machine is wanted"),
    ("export gs://b/x --out gs://b/y", "--out 'gs://b/y': a path on this machine is wanted"),
    ("export gs://b/x --out x --context 9", "--context goes with"),
    ("export gs://b/x --check x --context 9", "--context goes with --out"),
    (
        "data check /tmp/ds",
        "URI '/tmp/ds': gs://bucket/path or file:///absolute/path is wanted, such as file:///tmp/ds",
    ),
    ("data show s3://bucket/ds", "URI 's3://bucket/ds': gs://bucket/path or file:///absolute/path is wanted"),
    ("data check ''", "URI '': gs://bucket/path or file:///absolute/path is wanted"),
    ("data import file:///x x --field ''", "--field '': a value is wanted"),
    ("data import file:///x x --shard -1MB", "--shard '-1MB': a number from 0.001 to 1000 is wanted"),
    ("data import file:///x x ''", "SOURCE '': a value is wanted"),
    ("export gs://b/x --check ''", "--check '': a path on this machine is wanted"),
    ("replay tape --check rel", "--check 'rel': gs://bucket/path or file:///absolute/path"),
)
"""Cases of `simulate`, `data import` and `export` with files are in the tests of these commands."""


@pytest.mark.parametrize(("command", "words"), WRONG)
def test_wrong_options_are_one_sentence_and_status_2(
    command: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(command)) == 2
    message = capsys.readouterr().err
    assert words in message
    assert message.count("\n") == 1


@pytest.mark.parametrize("name", OTHERS)
def test_each_error_of_another_package_is_there(name: str) -> None:
    module, _, kind = name.rpartition(".")
    assert issubclass(getattr(import_module(module), kind), Exception)


def test_version_loads_neither_jax_nor_the_cluster() -> None:
    code = (
        "import sys; from atoll_cli.__main__ import main; main(['version'])\n"
        "heavy = {'jax', 'kopf', 'grpc', 'atoll_local', 'yaml'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    done = ended(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("atoll ")


def test_kubectl_that_hangs_is_ended(tmp_path: Path) -> None:
    kubectl = Kubectl(program=executable(tmp_path / "program", "exec sleep 30"))
    with pytest.raises(KubectlError, match=r"did not answer within 0 s"):
        kubectl.run("get", "pods", timeout=0.2)


def test_kubectl_is_told_the_cluster_and_given_the_objects(tmp_path: Path) -> None:
    program = executable(tmp_path / "program", f'(echo "$@"; cat) > {tmp_path}/told')
    kubectl = Kubectl(program=program, kubeconfig=Path("/k"), context="c", namespace="n")
    kubectl.apply({"kind": "Namespace"})
    told, given = (tmp_path / "told").read_text().splitlines()
    assert told == "--kubeconfig=/k --context=c --namespace=n apply -f -"
    assert '"kind": "Namespace"' in given


def test_an_evaluation_that_fails_says_which_checkpoint(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}"
    with pytest.raises(CommandError, match=f"evaluation of {uri} failed"):
        evaluate(uri, 0, DataSpec(uri=uri, sequence_length=128))


def test_stages_are_numbered_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(100.0, 2.5)
    monkeypatch.setattr("atoll_cli.demo.console.time", SimpleNamespace(monotonic=lambda: next(clock)))
    stream = io.StringIO()
    console = Console(2, stream)
    with console.stage("one", "First"):
        console.live("a line that follows")
    with console.stage("two", "Second"):
        console.say("a line\nor two")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "[1/2] First"
    assert "a line that follows" in lines[1]
    assert lines[2] == "      done in 5.0 s"
    assert lines[3:6] == ["[2/2] Second", "      a line", "      or two"]
    assert console.timings == {"one": 5.0, "two": 2.5}


def test_an_interrupt_before_the_options_are_known_is_one_line() -> None:
    code = """
import signal, sys
from atoll_cli import __main__
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "argparse":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ["atoll", "version"]
sys.exit(__main__.main())
"""
    done = ended(sys.executable, "-c", code)
    assert (done.returncode, done.stderr) == (130, "atoll: interrupted\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_a_command_ends_the_processes_that_it_has_started(
    number: signal.Signals, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "started")
    root = 'root="${5#*=}"; until [ -s "$root/../fake-gcs-server.pid" ]; do sleep 0.01; done'  # the command knows it
    server = executable(tmp_path / "program", f"{root}; echo $$ > {tmp_path}/started; exec sleep 60")
    process = subprocess.Popen(
        ["env", "--default-signal", *ATOLL, "bench", "restore", "--parameters", "1"],
        env={**os.environ, "ATOLL_FAKE_GCS_SERVER": str(server)},
        stderr=subprocess.PIPE,
        text=True,
    )
    pid = int((tmp_path / "started").read_text())
    process.send_signal(number)
    assert (process.communicate()[1], process.returncode) == ("atoll: interrupted\n", 130)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_a_signal_that_the_caller_ignores_stays_ignored_as_nohup_wants() -> None:
    code = (
        "import signal, sys; from atoll_cli.__main__ import main; sys.argv = ['atoll', 'version']; main()\n"
        "sys.exit(signal.getsignal(signal.SIGHUP) != signal.SIG_IGN)"
    )
    assert ended("env", "--ignore-signal=HUP", sys.executable, "-c", code).returncode == 0


@pytest.mark.parametrize("arguments", [["version"], ["simulate", "scavenge", "--json"]])
def test_a_full_disk_behind_the_output_is_one_sentence(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*ATOLL, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, "atoll: output: No space left on device\n")


def test_a_working_folder_that_was_deleted_is_named() -> None:
    called = f'cd "$(mktemp -d)" && rmdir "$PWD" && {sys.executable} -P -m atoll_cli data check x'
    done = ended("sh", "-c", called)
    assert (done.returncode, done.stderr) == (2, "atoll: working folder: No such file or directory\n")


def test_a_message_that_nobody_can_be_told_does_not_change_how_a_command_ends() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open("/dev/full", "w") as full, open(writer, "w") as broken:
        for output in (full, broken):
            assert subprocess.run([*ATOLL, "simulate", "plan"], stderr=output, check=False).returncode == 2


def test_closed_outputs_do_not_change_how_a_command_ends() -> None:
    quiet = ("sh", "-c", '"$@" >&- 2>&-', "sh", *ATOLL)
    assert subprocess.run([*quiet, "version"], check=False).returncode == 0
    assert subprocess.run([*quiet, "simulate", "links", "--links", "0"], check=False).returncode == 2


@pytest.mark.parametrize(
    ("encoding", "arguments"),
    [("ascii", ["data", "import", "--help"]), ("latin-1", ["simulate", "scavenge"])],
)
def test_an_output_that_takes_no_unicode_gets_the_rest_of_the_text(
    encoding: str, arguments: list[str]
) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(
        [*ATOLL, *arguments], cwd=ROOT, capture_output=True, env=environment, encoding=encoding
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout) > 100


@pytest.mark.parametrize("missing", ["yaml", "tensorstore"])
def test_a_demo_without_its_packages_says_which_to_install(missing: str, tmp_path: Path) -> None:
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError('No module', name='{missing}')")
    environment = {"PYTHONPATH": str(tmp_path), "ATOLL_STATE": str(tmp_path / "state")}
    done = ended(*ATOLL, "demo", environment=environment)
    assert done.returncode == 2
    assert "pip install '.[local,runtime]'" in done.stderr and done.stderr.count("\n") == 1


def test_a_bucket_that_cannot_be_reached_is_one_sentence_that_names_missing_credentials(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "HOME": str(tmp_path),
        "CLOUDSDK_CONFIG": str(tmp_path),
        "NO_GCE_CHECK": "true",
    }.items():
        monkeypatch.setenv(name, value)
    loggers.quiet()
    logging.getLogger("urllib3").warning("Retrying")
    assert loggers.advice() == ""
    Bucket("gs://atoll/run")
    assert "no credentials of Google's were found" in loggers.advice()
    assert capsys.readouterr().err == ""
    loggers.quiet()
    assert loggers.advice() == ""


def test_kubectls_own_sentence_is_told_without_what_its_library_logged(tmp_path: Path) -> None:
    lines = ["E1122 01:33:37.295678 1745 memcache.go:265] Unhandled"] * 5 + ["The connection was refused"]
    program = executable(tmp_path / "program", "cat >&2 <<E\n" + "\n".join(lines) + "\nE\nexit 1")
    with pytest.raises(KubectlError, match=r"^kubectl get x failed: The connection was refused$"):
        Kubectl(program=program).run("get", "x")
