"""The run that the demo applies: the quickstart sample, with the few changes that were asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll_cli.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """A TrainingRun as it will be applied."""

    path: Path
    manifest: dict[str, Any]
    changed: bool
    """False: the file itself is applied."""

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def data(self) -> str:
        return str(self.manifest["spec"]["data"]["uri"])

    @property
    def checkpoints(self) -> str:
        return str(self.manifest["spec"]["checkpoint"]["uri"])

    @property
    def sequence_length(self) -> int:
        return int(self.manifest["spec"]["data"]["sequenceLength"])

    @property
    def units(self) -> int:
        return sum(pool["units"] for pool in self.manifest["spec"]["pools"])

    @property
    def target(self) -> int:
        """Global steps."""
        return int(self.manifest["spec"]["target"]["globalSteps"])


NODE_LOST_SECONDS, MORE_STEPS = 120, 1200
"""What a run needs that outlives a minute without a link: its node counts as lost later, and training takes longer."""


def load_run(path: Path, seed: int | None = None, outlives_cut: bool = False) -> RunFile:
    """Reads the sample; `seed` replaces what it says.

    Raises:
        UsageError: the file is not there.
    """
    import yaml

    try:
        manifest = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; the demo runs from a checkout of Atoll") from error
    if seed is not None:
        manifest["spec"]["model"]["seed"] = manifest["spec"]["data"]["seed"] = seed
    if outlives_cut:
        manifest["spec"]["recovery"] = {"nodeLostSeconds": NODE_LOST_SECONDS}
        manifest["spec"]["target"]["globalSteps"] += MORE_STEPS
    return RunFile(path=path, manifest=manifest, changed=outlives_cut or seed is not None)
