"""A bucket on this machine: fake-gcs-server, reached with gs:// URIs."""

from __future__ import annotations

import signal
from pathlib import Path

from atoll_local.controlplane import free_port
from atoll_local.host import check_port
from atoll_local.process import Daemon, Startable
from atoll_local.programs import find

PORT = 4443


class FakeGcs(Startable):
    """fake-gcs-server with its objects in files, which survive `stop` and `start`."""

    def __init__(self, folder: Path, address: str = "127.0.0.1", port: int = PORT) -> None:
        """`port` 0 takes a free one."""
        self.folder = folder
        self.address = address
        self.port = port or free_port(address)
        self._objects = folder / "objects"
        self._daemon = Daemon("fake-gcs-server", folder)

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.port}"

    def environment(self) -> dict[str, str]:
        """The environment of the bucket's clients, in place of Google's credentials."""
        return {
            "TENSORSTORE_GCS_HTTP_URL": self.url,
            "STORAGE_EMULATOR_HOST": self.url,
            # No metadata server: requests go out without credentials instead of waiting for it.
            "GCE_METADATA_ROOT": "127.0.0.1:1",
            "NO_GCE_CHECK": "true",
            # Otherwise gcsfs asks a missing gRPC API for the type of the bucket, and hangs.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }

    def start(self) -> None:
        """Starts the server and waits until it answers. Does nothing if it runs. Raises `HostError` if its port is
        taken, and `ClusterError` if it ended at once, or it did not answer within 20 s."""
        if self._daemon.pid() is not None:
            return
        # Another server there would be mistaken for ours.
        check_port(self.port, f"the bucket at {self.address}", self.address)
        self._objects.mkdir(parents=True, exist_ok=True)
        self._daemon.start(
            [
                str(find("fake-gcs-server")),
                "-scheme=http",
                f"-host={self.address}",
                f"-port={self.port}",
                "-backend=filesystem",
                f"-filesystem-root={self._objects}",
                f"-public-host={self.address}:{self.port}",
                f"-external-url={self.url}",
                "-log-level=warn",
            ]
        )
        self._daemon.await_answer(f"{self.url}/storage/v1/b?project=atoll", 20)

    def stop(self) -> None:
        """Ends the server. The bucket's objects stay."""
        self._daemon.stop(signal.SIGKILL)

    def create_bucket(self, name: str) -> None:
        """Creates the bucket if it does not exist. A bucket is a folder of the server's files."""
        (self._objects / name).mkdir(parents=True, exist_ok=True)
