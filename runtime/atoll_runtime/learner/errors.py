"""Why an island ends before its run does.

`process.Terminal`: a restart cannot fix it; the process exits with `EXIT_TERMINAL` and the reason in its termination
message.
`FencedOff`: a newer incarnation of the unit is registered.
After any other exception, a restart of the gang may help.
"""

from __future__ import annotations

from atoll_runtime.process import Terminal


class LossNotFinite(Terminal):
    """The training loss is NaN or infinite, so nothing more of this unit may be merged."""

    def __init__(self, step: int, loss: float) -> None:
        super().__init__("LossNotFinite", f"loss {loss} at inner step {step}")


class FencedOff(Exception):
    """A newer incarnation of this unit has taken over."""


class SeedUnavailable(Exception):
    """No complete global checkpoint was available in time."""
