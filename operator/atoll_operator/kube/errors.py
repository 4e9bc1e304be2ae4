"""The exceptions of this package."""

from __future__ import annotations

import re

_REFUSAL = re.compile(
    "failed to create typed patch object|failed to convert new object|.*failed calling webhook|"
    "admission webhook .* denied the request|.*ValidatingAdmissionPolicy .* denied request"
)
"""How a refusal begins whose status says something else: unknown fields and wrong types in a server-side apply, and a
webhook that fails, have 500; webhooks and policies choose a status."""


class ApiError(Exception):
    """The API server's answer; the message is its own."""


class NotFound(ApiError):
    """404: there is no such object."""


class AlreadyExists(ApiError):
    """409 at a create: the name is taken."""


class Conflict(ApiError):
    """409: the object is newer than the write assumed."""


class Refused(ApiError):
    """400, 403, 422, or by a webhook or policy: refused again until somebody changes something."""


class Unreadable(ApiError):
    """An object lacks what this version needs to read it; another version wrote it."""


class Unreachable(Exception):
    """No answer of the API server, or 429 and 5xx to the end of all tries."""


class NotLeading(Exception):
    """This operator does not hold the lease any more: a write was not sent."""


class Restored(Exception):
    """The API server has an earlier state than before, as after a restore of etcd: what is known may not be."""


class CredentialsError(Exception):
    """There is no service account and no kubeconfig, or it cannot be used."""


class Retry(Exception):
    """No error: try again after `seconds`, doubled with each further try."""

    def __init__(self, seconds: float, reason: str) -> None:
        super().__init__(reason)
        self.seconds = seconds


def is_final(status: int, message: str) -> bool:
    """Whether another try at once would be answered the same."""
    return bool(_REFUSAL.match(message)) or (status not in (401, 429) and status < 500)


def of_status(status: int, reason: str, message: str) -> ApiError:
    """The exception for an answer."""
    kinds = {404: NotFound, 409: Conflict, **dict.fromkeys((400, 403, 422), Refused)}
    kind: type[ApiError] = kinds.get(status, ApiError)
    if _REFUSAL.match(message):
        kind = Refused
    elif status == 409 and reason == "AlreadyExists":
        kind = AlreadyExists
    return kind(message)
