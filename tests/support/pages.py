"""Plays a reader of the documentation, who types the commands of a page as they are written, in one shell."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("charts", "crds", "images", "manifests")
"""Folders of a checkout that pages name. They are copied, so that no page changes the real checkout."""
NOTE = '#!/bin/sh\necho "$(basename "$0") $*" >> "$NOTES"\n'
GCLOUD = (
    NOTE + 'case "$*" in *projectNumber*) echo 4711 ;; *registryUri*) echo registry.example/atoll ;; esac\n'
)
MAKE = f'#!/bin/sh\nexec /usr/bin/make -n -C {ROOT} "$@" > /dev/null\n'
PIP = f"""#!{sys.executable} -IS
import re, sys, tomllib
project = tomllib.load(open("{ROOT}/pyproject.toml", "rb"))["project"]
command, what = sys.argv[1:]
name, extras = re.fullmatch(r"(\\.)(?:\\[(.*)\\])?", what).groups()
unknown = set((extras or "").split(",")) - {{"", *project["optional-dependencies"]}}
sys.exit(f"unknown extras: {{unknown}}" if command != "install" or unknown else 0)
"""
KUBECTL = f"""#!{sys.executable} -IS
import os, subprocess, sys
words = sys.argv[1:]
watches = "-w" in words and words[0] != "atoll"
command = [os.environ["REAL_KUBECTL"], *words, *(["--request-timeout=1s"] if watches else [])]
done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
sys.stderr.write(done.stderr)
unreached = "logs" in words and "no preferred addresses" in done.stderr
sys.exit(0 if watches or unreached else done.returncode)
"""
"""Ends a watch after a second. Ignores that the kubelet of a played node has no log, because the request is enough."""
PROGRAMS = {"gcloud": GCLOUD, "docker": NOTE, "make": MAKE, "pip": PIP, "kubectl": KUBECTL}


def blocks(page: str, language: str = "") -> list[str]:
    """Fenced blocks of a page of docs/ in this language. Blocks without a language are commands."""
    text = (ROOT / "docs" / page).read_text()
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    return [block for kind, block in found if kind == language]


class Reader:
    """A reader with a checkout in `folder`, and with kubectl, helm and atoll on PATH."""

    def __init__(self, folder: Path, environment: dict[str, str], **programs: Path) -> None:
        """`programs`: the real programs, by name."""
        self.folder, own = folder, folder / ".bin"
        own.mkdir(parents=True)
        self._notes = own / "notes"
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name)
        for name, text in PROGRAMS.items():
            (own / name).write_text(text)
            (own / name).chmod(0o755)
        for name, path in programs.items():
            if name not in PROGRAMS:
                (own / name).symlink_to(path)
        (folder / ".venv").mkdir()
        (folder / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
        self._environment = {
            **os.environ,
            **environment,
            "PATH": f"{own}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "NOTES": str(self._notes),
            "ATOLL_KUBECTL": str(own / "kubectl"),
            "REAL_KUBECTL": str(programs.get("kubectl", "")),
        }

    @property
    def notes(self) -> list[str]:
        """The commands given to programs that need an account."""
        return self._notes.read_text().splitlines() if self._notes.exists() else []

    def save(self, name: str, text: str, **names: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_with(names, text))

    def type(self, *commands: str, timeout: float = 700, **names: str) -> str:
        """Run blocks of commands with these words in place of words in capitals, and return what they printed.

        Raises:
            AssertionError: a command failed; its output is shown.
        """
        fails = "trap 'echo \"this command failed: $BASH_COMMAND\"' ERR"
        script = "\n".join(("set -eEuo pipefail", fails, *(_with(names, each) for each in commands)))
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout


def _with(names: dict[str, str], text: str) -> str:
    return re.sub(r"(?<![\w$])[A-Z]+\b", lambda word: names.get(word[0], word[0]), text)
