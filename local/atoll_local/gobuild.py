"""Builds a program from its Go module."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path

from atoll_local.catalogue import Program
from atoll_local.errors import HostError
from atoll_local.process import run

MAINS = Path(__file__).with_name("manifests") / "go"
GO_DIRECTIVE = "1.26.0"
KUBERNETES_MODULE = "k8s.io/kubernetes"
BUILD_TIMEOUT = 7200.0
"""Seconds for one program. kube-apiserver takes about 230 on two cores with empty caches, under load more than 1800."""


def go_program() -> str | None:
    """The Go tool, or None."""
    return shutil.which("go") or ("/usr/local/go/bin/go" if Path("/usr/local/go/bin/go").is_file() else None)


def build(program: Program, work: Path, target: Path) -> None:
    """Builds `program` to `target`. Modules of one family share `work`. Raises `HostError` if there is no Go, or the
    build failed (the message ends with the compiler's last lines)."""
    go = go_program()
    if go is None:
        raise HostError(f"{program.name} {program.version} is not there, and Go is not installed to build it")
    work.mkdir(parents=True, exist_ok=True)
    module = work / "go.mod"
    kubernetes = program.module == KUBERNETES_MODULE
    required = re.compile(rf"{program.module} v{re.escape(program.version)}\s")
    if not module.is_file() or (kubernetes and not required.search(module.read_text())):
        head = f"module atoll.dev/programs/{work.name}\n\ngo {GO_DIRECTIVE}\n"
        module.write_text(head + (_requirements(program) if kubernetes else ""))
    if program.main:
        shutil.copy(MAINS / program.main, work / "main.go")
    if program.own_sums:
        (work / "go.sum").write_bytes((module_folder(program) / "go.sum").read_bytes())
    if not kubernetes:
        _run(go, ["get", f"{program.module}@v{program.version}"], work)
    if program.main:
        _run(go, ["mod", "tidy"], work)
    package = program.package or f"{program.module}/cmd/{program.name}"
    flags = " ".join(("-s", "-w", *program.linker_flags))
    _run(go, ["build", "-mod=mod", "-ldflags", flags, "-o", str(target), package], work)


def module_folder(program: Program) -> Path:
    """The source folder of the program's module. Go verifies a download by its checksum database. Raises `HostError`
    if there is no Go, or the module cannot be obtained."""
    go = go_program()
    if go is None:
        raise HostError(f"Go is not installed: {program.name} {program.version} needs files of its module")
    arguments = ["mod", "download", "-json", f"{program.module}@v{program.version}"]
    with tempfile.TemporaryDirectory() as empty:
        return Path(json.loads(_run(go, arguments, Path(empty)))["Dir"])


def _requirements(program: Program) -> str:
    """Lines of go.mod that require Kubernetes. It requires its staging modules as v0.0.0 and replaces them inside its
    own tree. These replacements do not apply to a dependent, so the published versions (v0.36.3 for 1.36.3) are named
    here."""
    theirs = (module_folder(program) / "go.mod").read_text()
    staged = sorted(set(re.findall(r"^\s*(?:require\s+)?(k8s\.io/[\w./-]+) v0\.0\.0(?:\s|$)", theirs, re.M)))
    published = "v0." + program.version.split(".", 1)[1]
    replaces = "".join(f"\t{name} => {name} {published}\n" for name in staged)
    return f"\nrequire {program.module} v{program.version}\n\nreplace (\n{replaces})\n"


def _run(go: str, args: list[str], work: Path) -> str:
    environment = {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOWORK": "off"}
    name = f"go {' '.join(args[:2])} in {work}"
    return run([go, *args], BUILD_TIMEOUT, name=name, cwd=work, environment=environment)
