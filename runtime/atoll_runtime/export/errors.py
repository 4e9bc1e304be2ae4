"""What an export can end with, besides `StoreError` of the bucket."""

from __future__ import annotations


class ExportError(Exception):
    """An export that cannot be made or read; the message names the option, file or tensor."""
