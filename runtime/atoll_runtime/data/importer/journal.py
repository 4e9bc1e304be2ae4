"""How far an import has come, kept in the bucket, so that a killed one goes on."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import Field, ValidationError

from atoll_runtime.checkpoint.bucket import Bucket
from atoll_runtime.data.catalogue import DataError, Part, Plan, Shard, SplitName
from atoll_runtime.data.importer.differences import differences

FOLDER = "import"
"""Below the data set's URI, until `meta.json` is written."""


class Mark(Part):
    """Where the shard that a split needs next begins."""

    source: Annotated[int, Field(ge=0)] = 0
    place: Annotated[int, Field(ge=0)] = 0
    """Of the document, in its source."""
    taken: Annotated[int, Field(ge=0)] = 0
    """Its first tokens, which stand in shards already."""
    shards: tuple[Shard, ...] = ()

    @property
    def at(self) -> tuple[int, int]:
        """Marks and documents in the order of reading."""
        return self.source, self.place


class Progress(Part):
    """One record: the newest that is whole counts, for a write to a file may be cut short."""

    plan: Plan
    marks: dict[SplitName, Mark]


class Journal:
    """Numbered records; a new one is written before the one before it is deleted."""

    def __init__(self, bucket: Bucket, plan: Plan) -> None:
        self._bucket = bucket
        self._plan = plan
        self._number = 0
        self.stands = False
        """Whether a record was found: an import began here and has not ended."""

    def resume(self) -> dict[SplitName, Mark]:
        """The marks of an import that was cut short; empty where there was none, or it wrote nothing.

        Raises:
            DataError: it was another import; names what differs.
            StoreError: the bucket does not answer.
        """
        names = sorted(name for name in self._bucket.list(FOLDER) if PurePosixPath(name).stem.isdigit())
        self.stands = bool(names)
        self._number = 1 + max((int(PurePosixPath(name).stem) for name in names), default=-1)
        for name in reversed(names):
            try:
                found = Progress.model_validate_json(self._bucket.read(name))
            except ValidationError:
                continue
            if not any(mark.shards for mark in found.marks.values()):
                return {}
            for difference in differences(found.plan, self._plan):
                raise DataError(
                    f"{self._bucket.address(FOLDER)}: an import that was cut short had {difference}; go on as before, "
                    "delete what is there, or import elsewhere"
                )
            return found.marks
        return {}

    def record(self, marks: dict[SplitName, Mark]) -> None:
        """Raises `StoreError`: the older record stands then."""
        file = f"{FOLDER}/{self._number:08d}.json"
        self._bucket.write(file, Progress(plan=self._plan, marks=marks).model_dump_json().encode())
        for name in self._bucket.list(FOLDER):
            if name != file:
                self._bucket.delete(name)
        self._number += 1

    def end(self) -> None:
        """Deletes all records."""
        self._bucket.delete_tree(FOLDER)
