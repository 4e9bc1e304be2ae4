"""An image as an OCI layout that shares its blobs with containerd, so that only new layers are copied."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any


class Layout:
    """The folder `buildah push … oci:FOLDER` writes: one image, its blobs named by their sha256."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blobs = folder / "blobs" / "sha256"

    def digests(self) -> list[str]:
        """The sha256 of manifest, configuration and layers of the image."""
        manifest = self._index()["manifests"][-1]["digest"].removeprefix("sha256:")
        content = json.loads((self.blobs / manifest).read_text())
        parts = [content["config"], *content["layers"]]
        return [manifest, *(part["digest"].removeprefix("sha256:") for part in parts)]

    def write_archive(self, archive: Path, reference: str, present: Path) -> None:
        """Writes an archive for `ctr images import`, without the blobs in the folder `present`."""
        index = self._index()
        entry = index["manifests"][-1]
        entry["annotations"] = {"io.containerd.image.name": reference}
        index["manifests"] = [entry]
        with tarfile.open(archive, "w") as tar:
            tar.add(self.folder / "oci-layout", "oci-layout")
            for digest in self.digests():
                if not (present / digest).exists():
                    tar.add(self.blobs / digest, f"blobs/sha256/{digest}")
            content = json.dumps(index).encode()
            header = tarfile.TarInfo("index.json")
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))

    def share(self, present: Path) -> None:
        """Removes blobs of older images, and replaces the others by hard links to those in `present`."""
        used = set(self.digests())
        for blob in self.blobs.iterdir():
            twin = present / blob.name
            if blob.name not in used:
                blob.unlink()
            elif twin.exists() and not blob.samefile(twin):
                blob.unlink()
                os.link(twin, blob)

    def _index(self) -> dict[str, Any]:
        index: dict[str, Any] = json.loads((self.folder / "index.json").read_text())
        return index
