"""The base class of what operator and runtime write to each other, and types of text in it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class Section(BaseModel):
    """A part of the wire format. It is immutable, has camelCase keys on the wire, and refuses unknown keys."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,  # `kubectl explain` shows them
    )


ShortName = Annotated[str, Field(min_length=1, max_length=63)]
Uri = Annotated[str, Field(min_length=6, max_length=512, pattern=r"^(gs|file)://[^ \t-\r]+$")]
"""Outside a cluster (tests, benchmarks) every URI may be a file. The CRD is stricter."""
_NAME = "^gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]"
BUCKET = rf"{_NAME}(/[^ \t-\r]*)?$"
FOLDER = rf"{_NAME}(/[^ \t-\r/*?#%\[\]]+)*/?$"
"""A folder without characters that mean something in URIs and globs, because all in it is read and deleted by URI."""
BUCKET_OR_MOUNT = rf"{BUCKET}|^file://(/([^/. \t-\r]|[.][^/. \t-\r])[^/ \t-\r]*)+/?$"
"""A bucket or a folder of a volume. No part of the folder's path begins with `..`."""
