"""What units had that were seen to go, until their run's status names them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from pydantic import ValidationError

from atoll_operator.api.group import Object
from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.kube.keys import Key
from atoll_operator.plan.run.totals import NOTHING, Account, account

LIMIT = 4096
"""Units of one run; what the oldest had is then known by the run's total alone."""


class Departures:
    """Accounts of units that were seen to go, by run."""

    def __init__(self) -> None:
        self._accounts: dict[Key, OrderedDict[str, Account]] = {}

    def add(self, run: Key, unit: Object) -> None:
        """The last that was seen of a unit."""
        try:
            last = account(LearnerUnitStatus.model_validate(unit.get("status", {})))
        except ValidationError:  # another version wrote it; the run's total holds it all the same
            return
        if last == NOTHING:
            return
        accounts = self._accounts.setdefault(run, OrderedDict())
        accounts[unit["metadata"]["uid"]] = last
        if len(accounts) > LIMIT:
            accounts.popitem(last=False)

    def settle(self, run: Key, body: Object) -> None:
        """What the run's status names is in its totals."""
        if accounts := self._accounts.get(run):
            for uid in body.get("status", {}).get("departed", {}).get("counted", ()):
                accounts.pop(uid, None)

    def of(self, run: Key) -> Mapping[str, Account]:
        """By uid of the unit."""
        return self._accounts.get(run, {})

    def forget(self, run: Key) -> None:
        """The run is gone."""
        self._accounts.pop(run, None)
