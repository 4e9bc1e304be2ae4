"""URIs as arguments. A bad one is reported before anything is read or printed."""

from __future__ import annotations

from pathlib import Path

from atoll_cli.errors import UsageError


def of_bucket(argument: str, text: str) -> str:
    """`gs://bucket/…` or `file:///absolute/path`; raises `UsageError`."""
    wanted = "gs://bucket/path or file:///absolute/path is wanted"
    scheme, separator, rest = text.partition("://")
    if not separator:
        hint = f", such as file://{Path(text).absolute()}" if text.strip() else ""
        raise UsageError(f"{argument} {text!r}: {wanted}{hint}")
    if scheme == "file" and not rest.startswith("/"):
        raise UsageError(f"{argument} {text!r}: file:///absolute/path is wanted, with three slashes")
    if scheme not in ("gs", "file") or not rest.strip("/"):
        raise UsageError(f"{argument} {text!r}: {wanted}")
    return text
