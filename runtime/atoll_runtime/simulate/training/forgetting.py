"""A fragment that arrives takes the optimiser's moments of its parameters to zero: a rule that the proof tries."""

from __future__ import annotations

import numpy as np
from jax import Array

from atoll_runtime.learner.fragments import Fragments
from atoll_runtime.learner.inner import Inner


class Forgetful(Fragments):
    """As `Fragments`, for one learner's training."""

    inner: Inner
    """Whose moments they are; set before the first fragment arrives."""

    def receive(self, theta: dict[str, Array], number: int, part: np.ndarray) -> dict[str, Array]:
        """See `Fragments.receive`."""
        nothing = np.zeros_like(part)
        mu, nu = (
            {**slot, **self._replace(dict(slot), number, nothing, None)[0]}
            for slot in (self.inner.mu, self.inner.nu)
        )
        self.inner.go_on_with(mu, nu)
        return super().receive(theta, number, part)
