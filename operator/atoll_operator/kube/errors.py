"""The exceptions of this package."""

from __future__ import annotations

import re

_REFUSAL = re.compile(
    "failed to create typed patch object|failed to convert new object|.*failed calling webhook|"
    "admission webhook .* denied the request|.*ValidatingAdmissionPolicy .* denied request"
)
"""Beginnings of messages that are refusals whatever their status. Unknown fields and wrong types in a server-side
apply, and failing webhooks, have status 500. Webhooks and policies choose theirs."""


class ApiError(Exception):
    """An error that the API server answered, with its message."""


class NotFound(ApiError):
    """404: there is no such object."""


class AlreadyExists(ApiError):
    """409 at a create: the name is taken."""


class Conflict(ApiError):
    """409: the object is newer than the write assumed."""


class Refused(ApiError):
    """400, 403, 422, or by a webhook or policy. A retry is refused too until somebody changes something."""


class Unreadable(ApiError):
    """An object lacks what this version needs to read it; another version wrote it."""


class Unreachable(Exception):
    """No answer from the API server, or 429 or 5xx in every try."""


class NotLeading(Exception):
    """This operator no longer holds the lease, so a write was not sent."""


class Restored(Exception):
    """The API server went back to an earlier state, as after a restore of etcd, so what is known may be wrong."""


class CredentialsError(Exception):
    """There is no service account and no kubeconfig, or it cannot be used."""


class Retry(Exception):
    """Not an error: try again after `seconds`, doubled with each further try."""

    def __init__(self, seconds: float, reason: str) -> None:
        super().__init__(reason)
        self.seconds = seconds


def is_final(status: int, message: str) -> bool:
    """Whether another try at once would get the same answer."""
    return bool(_REFUSAL.match(message)) or (status not in (401, 429) and status < 500)


def of_status(status: int, reason: str, message: str) -> ApiError:
    if _REFUSAL.match(message):
        return Refused(message)
    conflict = AlreadyExists if reason == "AlreadyExists" else Conflict
    kinds = {404: NotFound, 409: conflict, **dict.fromkeys((400, 403, 422), Refused)}
    return kinds.get(status, ApiError)(message)
