"""The image of a run's pods and the operator's variables for them, as they were when the run began.

The defaults of a newer operator are for runs that begin under it. An existing run changes its image, and the variables
with it, only when its user sets or clears `spec.image` (docs/decisions/changes.md).
"""

from __future__ import annotations

from collections.abc import Mapping

from atoll_operator.api.trainingrun import RuntimeStatus, TrainingRunSpec
from atoll_operator.plan.pods.template import PodSettings


def pod_settings(
    name: str,
    spec: TrainingRunSpec,
    held: RuntimeStatus | None,
    *,
    image: str,
    environment: Mapping[str, str],
    pull_policy: str,
) -> PodSettings:
    """The settings for every pod of a run.

    Args:
        held: image and variables in the run's status; None before its first reconciliation.
        image: the operator's default, for a run that names none.
        environment: the operator's variables.
    """
    if held is not None and held.asked == (spec.image or ""):
        image, environment = held.image, held.environment
    else:
        image = spec.image or image
        environment = held.environment if held is not None and held.image == image else environment
    return PodSettings(
        run=name,
        image=image,
        pull_policy=pull_policy,
        environment=environment,
        service_account=spec.service_account_name,
        template=spec.pod_template,
    )


def runtime_status(spec: TrainingRunSpec, settings: PodSettings) -> RuntimeStatus:
    """The image and variables, as the run's status keeps them."""
    return RuntimeStatus(image=settings.image, asked=spec.image or "", environment=dict(settings.environment))
