"""The four images of a cluster, built without a registry or Docker, imported once and linked into each node."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from atoll_local import base
from atoll_local.context import TIME, version, write_context
from atoll_local.machine import PAUSE_IMAGE, SANDBOX
from atoll_local.paths import cache_dir, locked, source_root
from atoll_local.process import run
from atoll_local.programs import Progress, find, silent
from atoll_local.template import Template

ROLES: Mapping[str, Mapping[str, str]] = {"operator": {}, "runtime": {"EXTRAS": "runtime"}}
"""Build arguments by role. `images/ROLE.Dockerfile` becomes the image `atoll.dev/ROLE:VERSION`. The images do not have
libtpu, because there are no TPUs here and libtpu takes 684 MB."""
COREDNS_IMAGE = "atoll.dev/coredns:1"
BUILD_TIMEOUT = 7200.0
LOCK = "lock"
"""One process at a time builds or copies images."""


def image(role: str) -> str:
    return f"atoll.dev/{role}:{version(source_root())}"


def build_images(progress: Progress = silent, *, force: bool = False) -> None:
    """Builds every image that is missing or outdated; `force` rebuilds all from nothing. Raises `HostError`, with the
    tool's last lines, if a tool or a package cannot be obtained."""
    folder = cache_dir() / "images"
    with locked(folder / LOCK):
        if force:
            for store in ("buildah", "containerd"):
                shutil.rmtree(folder / store, ignore_errors=True)
        builder = Builder(folder, progress)
        builder.small(PAUSE_IMAGE, f'ARG BASE\nFROM ${{BASE}}\nENTRYPOINT ["{SANDBOX}", "infinity"]\n')
        coredns = find("coredns", progress).read_bytes()
        builder.small(
            COREDNS_IMAGE, 'FROM scratch\nCOPY program /coredns\nENTRYPOINT ["/coredns"]\n', coredns
        )
        for role in ROLES:
            builder.role(role)


def made_from() -> dict[str, str]:
    """Key of the content of each image in the cache."""
    return Template(cache_dir() / "images" / "containerd").keys()


def install_images(nodes: Sequence[Path], progress: Progress = silent) -> None:
    """Gives each node folder a `containerd` store that holds every image that `build_images` made."""
    folder = cache_dir() / "images"
    with locked(folder / LOCK):
        started = time.monotonic()
        for node in nodes:
            Template(folder / "containerd").copy_to(node / "containerd")
        progress(f"images: in the stores of {len(nodes)} nodes in {time.monotonic() - started:.1f} s")


class Builder:
    """buildah with its own store in the cache, so that the host's configuration has no effect."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self._progress = progress
        self._template = Template(folder / "containerd")
        self._store = folder / "buildah"
        self._policy = f"--signature-policy={self._store / 'policy.json'}"
        self._store.mkdir(parents=True, exist_ok=True)
        # Nothing is pulled: every image that a build starts from was made on this machine.
        (self._store / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}\n')

    def small(self, reference: str, dockerfile: str, program: bytes = b"") -> None:
        """Build an image from a Dockerfile that may copy `program`."""
        key = f"{base.KEY}-{hashlib.sha256(dockerfile.encode() + program).hexdigest()}"
        if self._template.holds(reference, key):
            return
        with TemporaryDirectory(prefix="atoll-context-") as temporary:
            context = Path(temporary)
            (context / "Dockerfile").write_text(dockerfile)
            (context / "program").write_bytes(program)
            (context / "program").chmod(0o755)
            self._add(reference, key, context, {})

    def role(self, role: str) -> None:
        """Build one of our images from its Dockerfile, unless it is up to date."""
        with TemporaryDirectory(prefix="atoll-context-") as temporary:
            context = Path(temporary)
            key = f"{base.KEY}-{write_context(source_root(), f'{role}.Dockerfile', context)}"
            if not self._template.holds(image(role), key):
                self._add(image(role), key, context, ROLES[role])

    def _base(self) -> str:
        """Return the reference of the base. Makes the base if it does not exist."""
        reference = f"localhost/atoll-base:{base.KEY}"
        if reference in self._buildah("images", "--format", "{{.Name}}:{{.Tag}}").split():
            return reference
        started = time.monotonic()
        self._progress("images: making the base (Debian with Python)")
        with TemporaryDirectory(prefix="atoll-base-") as temporary:
            context = Path(temporary)
            base.write_base(context / "base.tar")
            (context / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n")
            self._build(reference, context, {})
        self._progress(f"images: base made in {time.monotonic() - started:.0f} s")
        return reference

    def _add(self, reference: str, key: str, context: Path, arguments: Mapping[str, str]) -> None:
        started = time.monotonic()
        self._progress(f"images: building {reference}")
        self._build(reference, context, {"BASE": self._base(), **arguments})
        with TemporaryDirectory(prefix="atoll-image-") as temporary:
            archive = Path(temporary) / "image.tar"
            self._buildah("push", self._policy, reference, f"docker-archive:{archive}:{reference}")
            self._template.add(reference, key, archive)
        self._progress(f"images: {reference} built and imported in {time.monotonic() - started:.0f} s")

    def _build(self, reference: str, context: Path, arguments: Mapping[str, str]) -> None:
        """Build the image. Layers with unchanged input are taken from the store."""
        with base.pip_mounts() as mounts:
            options = ["--layers", "--isolation=chroot", "--pull-never", self._policy]
            options += [f"--timestamp={TIME}", "--identity-label=false"]
            options += [f"--build-arg={name}={value}" for name, value in arguments.items()]
            self._buildah("build", *options, *mounts, f"--tag={reference}", str(context))

    def _buildah(self, command: str, *arguments: str) -> str:
        store = [
            f"--root={self._store / 'store'}",
            f"--runroot={self._store / 'run'}",
            "--storage-driver=overlay",
        ]
        return run(["buildah", *store, command, *arguments], BUILD_TIMEOUT)
