"""What the header of each file says of an export: text by key, as safetensors wants it."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from atoll_runtime.contract import ModelSpec
from atoll_runtime.export.errors import ExportError
from atoll_runtime.export.files import DTYPES
from atoll_runtime.export.layouts import LAYOUTS

PREFIX = "atoll."


class Facts(BaseModel):
    """Where an export came from, and how it is written."""

    model_config = ConfigDict(frozen=True)

    version: str
    """Atoll's."""
    step: int
    """Global step of the checkpoint."""
    model: ModelSpec
    checkpoint: str
    """`sha256:…` of the checkpoint's manifests."""
    layout: str
    dtype: str

    @field_validator("layout", "dtype")
    @classmethod
    def _known(cls, value: str, info: ValidationInfo) -> str:
        known = LAYOUTS if info.field_name == "layout" else DTYPES
        if value not in known:
            raise ValueError(f"{value!r} is none of {', '.join(known)}")
        return value

    def header(self) -> dict[str, str]:
        """Text by key."""
        facts = {name: str(value) for name, value in self if name != "model"}
        facts["model"] = self.model.model_dump_json(by_alias=True, exclude_none=True)
        # `transformers` refuses a file that does not say which library's order of dimensions it has.
        own = {} if self.layout == "atoll" else {"format": "pt"}
        return own | {PREFIX + name: value for name, value in facts.items()}

    @classmethod
    def of_header(cls, header: Mapping[str, str], where: object) -> Facts:
        """Raises `ExportError`: the file was not written by `atoll export`, or by one that is newer."""
        given: dict[str, object] = {
            key.removeprefix(PREFIX): value for key, value in header.items() if key.startswith(PREFIX)
        }
        try:
            model = ModelSpec.model_validate_json(str(given.get("model", "")))
            return cls.model_validate(given | {"model": model})
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"])) or "model"
            raise ExportError(
                f"{where}: not written by atoll export: {PREFIX}{field}: {first['msg']}"
            ) from error
