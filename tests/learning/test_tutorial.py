"""The tutorial, as it is written."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from compile_cache import kept_programs
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "/tmp/atoll-first"
"""In the tutorial; the test uses one of its own."""
TIMEOUT = 600
pytestmark = pytest.mark.timeout(TIMEOUT + 60)


def test_every_command_of_the_tutorial_without_kubernetes_does_what_it_says(tmp_path):
    text = (ROOT / "docs" / "tutorial.md").read_text().replace(FOLDER, str(tmp_path))
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    [(_, manifest)] = [block for block in blocks if block[0] == "yaml"]
    file = tmp_path / "first.yaml"
    file.write_text(manifest)
    lines = [line for language, block in blocks if not language for line in block.splitlines()]
    commands = [shlex.split(line) for line in lines if line.startswith("atoll ") and " -n " not in line]
    assert [command[1] for command in commands] == ["data", "data", "try", "export"]
    kept = {**os.environ, **kept_programs()}
    said = {}
    for command in commands:
        words = [str(file) if word == "first.yaml" else word for word in command[1:]]
        done = subprocess.run(
            [sys.executable, "-m", "atoll_cli", *words],
            cwd=ROOT,
            env=kept,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        said[command[1]] = done.stdout
    assert "all of it happened" in said["try"]
    assert list((tmp_path / "out" / "pods").glob("*/log"))
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    assert sum(tensor.size for tensor in tensors.values()) > 200_000
