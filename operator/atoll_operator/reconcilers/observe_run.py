"""Collects what is known of a run: from the informer cache and the pollers."""

from __future__ import annotations

from pydantic import ValidationError

from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.api.trainingrun import TrainingRunStatus
from atoll_operator.kube.cache import Key, controller_uid, key_of
from atoll_operator.plan.pods.names import evaluator, syncer
from atoll_operator.plan.run.elastic import places
from atoll_operator.plan.run.observed import RunObserved, UnitFacts
from atoll_operator.reconcilers.context import ControllerContext
from atoll_operator.reconcilers.inventory import Body


def observe_run(
    context: ControllerContext, body: Body, status: TrainingRunStatus, seen: float
) -> RunObserved:
    """Raises ValidationError if this version cannot read the spec; this operator saw the run first at `seen`."""
    inventory, metadata, spec = context.inventory, body["metadata"], body.run_spec
    key, uid = key_of("TrainingRun", body), metadata["uid"]
    syncer_pods = inventory.set_pods(key, syncer(key.name))
    evaluator_pods = inventory.set_pods(key, evaluator(key.name))
    names = {unit.name for unit in inventory.unit_keys(key)} | places(key.name, spec).keys()
    units = (inventory.get(Key("LearnerUnit", key.namespace, name)) for name in names)
    return RunObserved(
        name=key.name,
        namespace=key.namespace,
        uid=uid,
        generation=metadata["generation"],
        spec=spec,
        status=status,
        settings=context.pod_settings(key.name, spec, status.runtime),
        units={unit["metadata"]["name"]: _unit_facts(unit, uid) for unit in units if unit},
        annotations=metadata.get("annotations", {}),
        syncer_pods=syncer_pods,
        nodes=inventory.nodes_of((*syncer_pods, *evaluator_pods)),
        syncer=context.syncers.state(key, uid),
        seen=seen,
        order=context.syncers.order(key, uid),
        evaluator=context.evaluators.state(key, uid),
        evaluator_pods=evaluator_pods,
        evaluator_exists=inventory.get(Key("StatefulSet", key.namespace, evaluator(key.name))) is not None,
    )


def _unit_facts(body: Body, run: str) -> UnitFacts:
    try:
        unit = body.unit
    except ValidationError:  # another version wrote the spec
        status, spec = LearnerUnitStatus.model_validate(body.get("status", {})), None
    else:
        status, spec = unit.status, unit.spec
    metadata, controller = body["metadata"], controller_uid(body)
    stays = "deletionTimestamp" not in metadata
    return UnitFacts(
        name=metadata["name"],
        run=body["spec"]["run"],
        status=status,
        spec=spec,
        uid=metadata["uid"],
        owned=controller == run and stays,
        by_hand=controller == "" and stays,
        ours=controller in ("", run),
        generation=metadata["generation"],
    )


def problems(error: ValidationError) -> str:
    """What is wrong with a spec, field by field."""
    return "; ".join(f"spec.{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5])
