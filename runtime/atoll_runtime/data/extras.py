"""Optional packages that some data sets need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from atoll_runtime.data.catalogue import DataError


def extra(module: str, purpose: str) -> Any:
    """Imports a module that is not a dependency of this project.

    Raises:
        DataError: it is not installed; the message says why it is needed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise DataError(f"{purpose} needs the package {package}, pip install {package}: {error}") from error
