"""How a command ends: by Ctrl-C at any moment, with an output that accepts nothing, with verbose loggers."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from atoll_cli import loggers
from atoll_cli.kubectl import Kubectl, KubectlError

ROOT = Path(__file__).resolve().parents[2]
HEARD = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
"""Makes SIGINT work. A background job of a shell ignores it, and these tests may be one."""


def atoll(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "atoll_cli", *arguments]
    return subprocess.run(command, text=True, check=False, **options)  # type: ignore[call-overload]


def test_an_interrupt_before_the_options_are_known_is_one_line() -> None:
    code = """
import signal, sys
from atoll_cli import __main__
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "argparse":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ["atoll", "version"]
sys.exit(__main__.main())
"""
    done = subprocess.run([sys.executable, "-c", HEARD + code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "atoll: interrupted\n")


@pytest.mark.parametrize("arguments", [["version"], ["simulate", "scavenge", "--json"]])
def test_a_full_disk_behind_the_output_is_one_sentence(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = atoll(*arguments, stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, "atoll: output: No space left on device\n")


@pytest.mark.parametrize(
    ("encoding", "arguments"),
    [("ascii", ["data", "import", "--help"]), ("latin-1", ["simulate", "scavenge"])],
)
def test_an_output_that_takes_no_unicode_gets_the_rest_of_the_text(
    encoding: str, arguments: list[str]
) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = atoll(*arguments, cwd=ROOT, capture_output=True, env=environment, encoding=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout) > 100


@pytest.mark.parametrize("missing", ["yaml", "fsspec"])
def test_a_demo_without_its_packages_says_which_to_install(missing: str, tmp_path: Path) -> None:
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError('No module', name='{missing}')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "ATOLL_STATE": str(tmp_path / "state")}
    done = atoll("demo", env=environment, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert "pip install '.[local,runtime]'" in done.stderr and done.stderr.count("\n") == 1


def test_a_bucket_that_cannot_be_reached_is_one_sentence_that_names_missing_credentials(
    capsys: pytest.CaptureFixture[str],
) -> None:
    loggers.quiet()
    logging.getLogger("gcsfs.retry").error("out of retries")
    assert loggers.advice() == ""
    logging.getLogger("gcsfs").warning("bucket type: Your default credentials were not found. To set up …")
    assert "no credentials of Google's were found" in loggers.advice()
    assert capsys.readouterr().err == ""
    loggers.quiet()
    assert loggers.advice() == ""


def test_kubectls_own_sentence_is_told_without_what_its_library_logged(tmp_path: Path) -> None:
    program = tmp_path / "kubectl"
    lines = ["E1122 01:33:37.295678 1745 memcache.go:265] Unhandled"] * 5 + ["The connection was refused"]
    program.write_text("#!/bin/sh\ncat >&2 <<E\n" + "\n".join(lines) + "\nE\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(KubectlError, match=r"^kubectl get x failed: The connection was refused$"):
        Kubectl(program=program).run("get", "x")
