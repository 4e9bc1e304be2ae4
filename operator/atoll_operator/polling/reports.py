"""Fetches what a pod of a run says of itself, over HTTPS with the run's certificates."""

from __future__ import annotations

import ssl
from typing import Literal, TypeVar

import aiohttp
from pydantic import ValidationError

from atoll_runtime.contract import EvaluatorStatus, SyncerStatus

TIME_OUT = aiohttp.ClientTimeout(total=5, connect=3)
BODY_LIMIT = 8 * 2**20
"""Bytes of a report. A unit of the longest name takes 795 with all its figures and its ledger (2026-11-22): 3.3 MB for
the 4,096 that a run can have; those that are gone leave their ledgers."""

R = TypeVar("R", SyncerStatus, EvaluatorStatus)


class Unanswered(Exception):
    """No report that can be believed; `reason` is CamelCase, the message is for people."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


async def fetch(
    session: aiohttp.ClientSession,
    url: str,
    host: str,
    uid: str,
    kind: type[R],
    who: Literal["syncer", "evaluator"],
) -> R:
    """The report at `url` of a pod whose certificate names `host`, of the run of this uid.

    Raises:
        Unanswered: its reason begins with `Syncer` or `Evaluator`.
    """
    role = who.capitalize()
    try:
        async with session.get(url, server_hostname=host) as response:
            if response.status != 200:
                raise Unanswered(f"{role}Unavailable", f"the {who} answers {response.status}")
            text = await _body(response.content, who)
        report = kind.model_validate_json(text)
    except (
        aiohttp.ClientConnectorCertificateError,
        aiohttp.ClientConnectorSSLError,
        ssl.SSLError,
    ) as error:
        raise Unanswered(
            f"{role}CertificateInvalid", f"the {who}'s certificate is not this run's: {error}"
        ) from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        problem = f"the {who} does not answer: {type(error).__name__}: {error}"
        raise Unanswered(f"{role}Unavailable", problem) from error
    except ValidationError as error:
        problem = f"the {who}'s status cannot be read: {error.errors()[:3]}"
        raise Unanswered(f"{role}StatusInvalid", problem) from error
    if report.run_uid != uid:
        problem = f"the {who} serves the run of uid {report.run_uid}, not {uid}"
        raise Unanswered(f"{role}OfAnotherRun", problem)
    return report


async def _body(stream: aiohttp.StreamReader, who: str) -> bytes:
    """All of it, in as many parts as it comes."""
    body = bytearray()
    async for part in stream.iter_any():
        body += part
        if len(body) > BODY_LIMIT:
            problem = f"the {who}'s status cannot be read: it has more than {BODY_LIMIT} bytes"
            raise Unanswered(f"{who.capitalize()}StatusTooLong", problem)
    return bytes(body)
