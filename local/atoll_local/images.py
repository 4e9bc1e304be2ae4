"""The four images of a cluster, built without a registry or Docker, imported once and linked into each node."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from atoll_local import base
from atoll_local.addons import COREDNS_IMAGE
from atoll_local.context import TIME, version, write_context
from atoll_local.machine import PAUSE_IMAGE
from atoll_local.pack import pause_program, write_image
from atoll_local.paths import cache_dir, locked, source_root
from atoll_local.process import run
from atoll_local.programs import Progress, find, silent
from atoll_local.template import Template

ROLES: Mapping[str, Mapping[str, str]] = {"operator": {}, "runtime": {"EXTRAS": "runtime"}}
"""Each has `images/ROLE.Dockerfile`, which takes these arguments, and becomes `atoll.dev/ROLE:VERSION`. libtpu is not
in them: here are no TPUs, and it takes 684 MB."""
BUILD_TIMEOUT = 7200.0
LOCK = "lock"
"""One process at a time builds or copies images."""


def image(role: str) -> str:
    """The reference of one of our images."""
    return f"atoll.dev/{role}:{version(source_root())}"


def build_images(progress: Progress = silent, *, force: bool = False) -> None:
    """Builds every image that is missing or outdated; `force` rebuilds all from nothing.

    Raises:
        HostError: a tool or a package cannot be had; the message ends with the tool's last lines.
    """
    folder = cache_dir() / "images"
    with locked(folder / LOCK):
        if force:
            for store in ("buildah", "containerd"):
                shutil.rmtree(folder / store, ignore_errors=True)
            (folder / f"base-{base.KEY}.tar").unlink(missing_ok=True)
        template = Template(folder / "containerd")
        _small(template, PAUSE_IMAGE, "pause", pause_program(), progress)
        _small(template, COREDNS_IMAGE, "coredns", find("coredns", progress).read_bytes(), progress)
        for role in ROLES:
            _from_dockerfile(template, folder, role, progress)


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


def _small(template: Template, reference: str, name: str, program: bytes, progress: Progress) -> None:
    key = hashlib.sha256(program).hexdigest()
    if template.holds(reference, key):
        return
    with TemporaryDirectory(prefix="atoll-image-") as folder:
        archive = Path(folder) / "image.tar"
        write_image(archive, reference, name, program)
        template.add(reference, key, archive)
    progress(f"images: {reference} made from its program")


def _from_dockerfile(template: Template, folder: Path, role: str, progress: Progress) -> None:
    started = time.monotonic()
    reference = image(role)
    with TemporaryDirectory(prefix="atoll-context-") as temporary:
        context = Path(temporary) / "context"
        key = f"{base.KEY}-{write_context(source_root(), f'{role}.Dockerfile', context)}"
        if template.holds(reference, key):
            return
        builder = Builder(folder / "buildah")
        _base(builder, folder, progress)
        progress(f"images: building {reference}")
        builder.build(reference, context, {"BASE": _base_reference(), **ROLES[role]})
        built = time.monotonic()
        archive = Path(temporary) / "image.tar"
        builder.save(reference, archive)
        template.add(reference, key, archive)
    ended = time.monotonic()
    progress(f"images: {reference} built in {built - started:.0f} s, imported in {ended - built:.0f} s")


def _base_reference() -> str:
    return f"localhost/atoll-base:{base.KEY}"


def _base(builder: Builder, folder: Path, progress: Progress) -> None:
    if builder.holds(_base_reference()):
        return
    archive = folder / f"base-{base.KEY}.tar"
    if not archive.exists():
        started = time.monotonic()
        progress("images: making the base (Debian with Python)")
        partial = archive.with_suffix(".partial.tar")
        base.write_base(partial)
        partial.replace(archive)
        progress(f"images: base made in {time.monotonic() - started:.0f} s")
    with TemporaryDirectory(prefix="atoll-base-") as temporary:
        context = Path(temporary)
        shutil.copy(archive, context / "base.tar")
        (context / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n")
        builder.build(_base_reference(), context, {})


class Builder:
    """buildah with a store of its own in the cache, so that no configuration of the host counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.policy = folder / "policy.json"
        folder.mkdir(parents=True, exist_ok=True)
        # Nothing is pulled: every image that a build starts from was made on this machine.
        self.policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}\n')

    def build(self, reference: str, context: Path, arguments: Mapping[str, str]) -> None:
        """Builds the Dockerfile in `context`; layers whose input is unchanged are taken from the store."""
        with base.pip_mounts() as mounts:
            options = ["--layers", "--isolation=chroot", "--pull-never", f"--signature-policy={self.policy}"]
            options += [f"--timestamp={TIME}", "--identity-label=false"]
            options += [f"--build-arg={name}={value}" for name, value in arguments.items()]
            self._buildah("build", *options, *mounts, f"--tag={reference}", str(context))

    def save(self, reference: str, archive: Path) -> None:
        """Writes the image as an archive, as `docker save` does."""
        policy = f"--signature-policy={self.policy}"
        self._buildah("push", policy, reference, f"docker-archive:{archive}:{reference}")

    def holds(self, reference: str) -> bool:
        return reference in self._buildah("images", "--format", "{{.Name}}:{{.Tag}}").split()

    def _buildah(self, command: str, *arguments: str) -> str:
        store = [
            f"--root={self.folder / 'store'}",
            f"--runroot={self.folder / 'run'}",
            "--storage-driver=overlay",
        ]
        return run(["buildah", *store, command, *arguments], BUILD_TIMEOUT)
