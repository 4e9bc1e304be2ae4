"""The base of the images: Debian with Python, made with mmdebstrap. Also pip's access to packages."""

from __future__ import annotations

import configparser
import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from atoll_local.context import TIME
from atoll_local.process import run

SUITE = "bookworm"
ARCHIVES = frozenset({SUITE, f"{SUITE}-updates", f"{SUITE}-security"})
PACKAGES = ("python3", "python3-venv", "ca-certificates")
_CLEAN = (
    'rm -rf "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/* '
    '"$1"/usr/share/doc "$1"/usr/share/man "$1"/usr/share/locale'
)
"""Removes this machine's mirrors, documentation and translations from the image."""
_COMPILE = (
    'PYTHONHASHSEED=0 chroot "$1" python3 -m compileall -qq -f --invalidation-mode unchecked-hash '
    "/usr/lib/python3 /usr/lib/python3.11"
)
"""Compiles Python without the times of its files, because a build sets all of them."""
KEY = hashlib.sha256(" ".join((SUITE, *PACKAGES, _CLEAN, _COMPILE)).encode()).hexdigest()[:16]
BASE_TIMEOUT = 900.0
CERTIFICATES = Path("/etc/ssl/certs")


def write_base(target: Path) -> None:
    """Write a tar archive of the base's files. It takes 15 s with a near mirror. Raises `HostError` if mmdebstrap
    failed or took too long."""
    with TemporaryDirectory(prefix="atoll-base-") as folder:
        mirrors: list[str] = []
        if sources := debian_sources(Path("/etc/apt")):
            mirror = Path(folder) / "debian.sources"
            mirror.write_text(sources)
            mirrors.append(str(mirror))
        include = f"--include={','.join(PACKAGES)}"
        hooks = [f"--customize-hook={hook}" for hook in (_COMPILE, _CLEAN)]
        # Without a mirror of this host, mmdebstrap takes Debian's own.
        command = ["env", f"SOURCE_DATE_EPOCH={TIME}", "mmdebstrap", "--variant=minbase", include, *hooks]
        run([*command, SUITE, str(target), *mirrors], BASE_TIMEOUT)


def debian_sources(apt: Path) -> str:
    """Return the stanzas of the `.sources` files below `apt` that serve the suite. They may name a near mirror."""
    stanzas = [
        stanza.strip()
        for path in sorted(apt.glob("sources.list.d/*.sources"))
        for stanza in path.read_text().split("\n\n")
        if _serves(stanza)
    ]
    return "\n\n".join([*stanzas, ""])


def _serves(stanza: str) -> bool:
    """True for Debian's own archives of the suite. A vendor's archives may name it too, but have other components."""
    fields = dict(line.split(":", 1) for line in stanza.splitlines() if ":" in line and line[0] not in "# \t")
    suites, components = (set(fields.get(name, "").split()) for name in ("Suites", "Components"))
    return bool(suites) and suites <= ARCHIVES and "main" in components


@contextmanager
def pip_mounts() -> Iterator[list[str]]:
    """Yield options of `buildah build` that give a build this machine's access to packages.

    pip's settings of every source (files and environment) become one file. It is mounted only during RUN, because an
    ARG or ENV would stay in the image's history. Paths of this machine that the settings name are mounted under
    `/run/pip`, so that not even an empty mount point shows them.
    """
    with TemporaryDirectory(prefix="atoll-pip-") as folder:
        settings = pip_settings()
        config = Path(folder) / "pip.conf"
        lent = {str(config): "/etc/pip.conf", str(CERTIFICATES): str(CERTIFICATES)}
        netrc = Path.home() / ".netrc"
        if netrc.is_file():
            lent[str(netrc)] = "/root/.netrc"
        paths = {word for word in " ".join(settings.values()).split() if _is_path(word)}
        inside = {path: f"/run/pip/{number}" for number, path in enumerate(sorted(paths))}
        writer = configparser.RawConfigParser()
        writer["global"] = {
            name: "\n".join(inside.get(word, word) for word in value.split())
            for name, value in settings.items()
        }
        with config.open("w") as file:
            writer.write(file)
        yield [f"--volume={source}:{target}:ro" for source, target in {**lent, **inside}.items()]


def _is_path(word: str) -> bool:
    return word.startswith("/") and Path(word).exists()


def pip_settings() -> dict[str, str]:
    """Return what `pip config list` of this Python shows. The environment comes before the files."""
    listing = run([sys.executable, "-m", "pip", "config", "list"], 60)
    found: dict[str, str] = {}
    for line in sorted(listing.splitlines(), key=lambda line: line.startswith(":env:")):
        key, _, value = line.partition("=")
        section, _, name = key.strip().rpartition(".")
        if section in ("global", "install", "wheel", ":env:"):
            found[name] = value.strip().strip("'\"").replace("\\n", "\n")
    return found
