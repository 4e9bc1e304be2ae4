"""Structured logs: one line of JSON or text for each event."""

from __future__ import annotations

import datetime
import json
import logging
from typing import Any, Literal

LOG = logging.getLogger("atoll")


class JsonFormatter(logging.Formatter):
    """Each line has ts, level, msg, logger and object, which may be empty; `extra={"fields": {...}}` adds keys."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, Any] = {"ts": moment.isoformat(timespec="milliseconds")}
        line |= {"level": record.levelname.lower(), "msg": record.getMessage(), "logger": record.name}
        line |= {"object": "", **getattr(record, "fields", {})}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = (f" {key}={value}" for key, value in getattr(record, "fields", {}).items())
        return super().formatMessage(record) + "".join(fields)


def configure(log_format: Literal["json", "text"]) -> None:
    """Log to stderr; from libraries only warnings and errors."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    LOG.setLevel(logging.INFO)


def log(level: int, message: str, **fields: object) -> None:
    LOG.log(level, message, extra={"fields": fields})
