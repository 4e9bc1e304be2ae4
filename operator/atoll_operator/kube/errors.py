"""The exceptions of this package.

ApiError              the API server refused
├── NotFound          404
├── AlreadyExists     409 at a create
├── Conflict          409: the object changed since it was read
├── NamespaceEnding   403: the namespace is being deleted and takes nothing new
└── Refused           400, 403, 422: it will be refused again until somebody changes something
Unreachable           no answer, or 429 and 5xx to the end of all tries
NotLeading            our lease has run out: a write was not sent
Retry                 not now, for a reason that is no error
CredentialsError      no way to the API server is configured
"""

from __future__ import annotations


class ApiError(Exception):
    """The API server's answer; the message is its own."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class NotFound(ApiError):
    """There is no such object."""


class AlreadyExists(ApiError):
    """The name is taken."""


class Conflict(ApiError):
    """The object is newer than the write assumed."""


class NamespaceEnding(ApiError):
    """Nothing can be created in the namespace, and its objects are deleted without the operator."""


class Refused(ApiError):
    """Invalid, forbidden, or over quota."""


class Unreachable(Exception):
    """The API server does not answer."""


class NotLeading(Exception):
    """This operator does not hold the lease any more."""


class CredentialsError(Exception):
    """There is no service account and no kubeconfig, or it cannot be used."""


class Retry(Exception):
    """Try again after `seconds`, doubled with each further try."""

    def __init__(self, seconds: float, reason: str) -> None:
        super().__init__(reason)
        self.seconds = seconds


def of_status(status: int, reason: str, message: str, cause: str = "") -> ApiError:
    """The exception for an answer; `cause` is the first cause in its details."""
    kinds: dict[int, type[ApiError]] = {
        404: NotFound,
        409: Conflict,
        400: Refused,
        403: Refused,
        422: Refused,
    }
    kind = kinds.get(status, ApiError)
    if status == 409 and reason == "AlreadyExists":
        kind = AlreadyExists
    elif cause == "NamespaceTerminating":
        kind = NamespaceEnding
    return kind(status, reason, message)
