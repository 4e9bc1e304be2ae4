"""`kubectl atoll logs`: logs of a unit across its hosts and incarnations, of a run's syncer, or of the operator."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from atoll_cli.errors import CommandError
from atoll_cli.formats import RUN, UNIT, named
from atoll_cli.kubectl import Kubectl, chosen
from atoll_cli.polling import back_off
from atoll_operator.api.group import LABEL_COMPONENT, LABEL_HOST, LABEL_RUN, LABEL_UNIT

OPERATOR_NAMESPACE = "atoll-system"
OPERATOR = "app.kubernetes.io/name=atoll,app.kubernetes.io/component=operator"
CONTAINER, OPERATORS = "main", "operator"
"""Our container in a run's pods, and in the operator's. Others may be injected."""
OVER = ("Complete", "Finished", "Failed", "Suspended")
"""Phases of a run or a unit in which no new process starts by itself."""
AT_ONCE = 64
"""Logs that are read at once."""
LOOKS = 10
"""Polls for the next process, with back-off: about four minutes in all."""


def run(options: argparse.Namespace) -> int:
    """Print the logs, as kubectl does, and with `--follow` also those of later processes. Raises `CommandError`: there
    is no such object or no pod, or kubectl failed."""
    kubectl = chosen(options)
    owner: tuple[str, str] | None = None
    if options.target == "operator":
        kubectl = replace(kubectl, namespace=kubectl.namespace or OPERATOR_NAMESPACE)
        selector = OPERATOR
    elif options.target == "syncer":
        owner = RUN, _run(options, kubectl)
        selector = f"{LABEL_RUN}={owner[1]},{LABEL_COMPONENT}=syncer"
    else:
        owner = UNIT, named(UNIT, options.target)
        selector = f"{LABEL_UNIT}={owner[1]}"
    seen, looks, status = set[str](), 0, 0
    while True:
        phase = _phase(kubectl, owner)
        pods = kubectl.get("pods", "-l", selector)["items"]
        if owner is not None and owner[0] == UNIT and not options.all_hosts:
            pods = [pod for pod in pods if pod["metadata"]["labels"].get(LABEL_HOST) == "0"]
        if not pods and not seen:
            raise CommandError(f"no pod has the labels {selector}")
        waits = options.follow and phase not in OVER and looks < LOOKS
        fresh = [pod for pod in pods if _process(pod) not in seen and (_started(pod) or not waits)]
        if fresh:
            looks = 0 if any(map(_started, fresh)) else looks
            status = _print(options, kubectl, [pod["metadata"]["name"] for pod in fresh])
            seen |= set(map(_process, fresh))
        if not options.follow or phase in OVER or looks >= LOOKS:
            return status
        looks += 1
        time.sleep(back_off(looks, 0.0))


def _run(options: argparse.Namespace, kubectl: Kubectl) -> str:
    """The run that was named, or the only one."""
    if options.run is not None:
        return named(RUN, options.run)
    names = [item["metadata"]["name"] for item in kubectl.get("trainingruns.atoll.dev")["items"]]
    if len(names) != 1:
        raise CommandError(f"{len(names)} TrainingRuns in this namespace; name one: logs syncer RUN")
    return str(names[0])


def _phase(kubectl: Kubectl, owner: tuple[str, str] | None) -> str:
    """Phase of the run or unit; empty for the operator. Raises `CommandError` if there is no such object."""
    if owner is None:
        return ""
    return kubectl.run("get", f"{owner[0]}s.atoll.dev", owner[1], "-o", "jsonpath={.status.phase}")


def _process(pod: Mapping[str, Any]) -> str:
    """Return a name for the pod's process. A container that restarts in its pod gets another one."""
    return f"{pod['metadata']['uid']}/{sum(each.get('restartCount', 0) for each in _containers(pod))}"


def _started(pod: Mapping[str, Any]) -> bool:
    """Whether our container has run, so that there is a log to follow."""
    ran = {"running", "terminated"}
    return any(each.get("restartCount") or ran & each.get("state", {}).keys() for each in _containers(pod))


def _containers(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The statuses of our container: one at most."""
    found = pod.get("status", {}).get("containerStatuses", [])
    return [each for each in found if each["name"] in (CONTAINER, OPERATORS)]


def _print(options: argparse.Namespace, kubectl: Kubectl, pods: list[str]) -> int:
    """Print the log of each pod with its own kubectl, `AT_ONCE` at a time. Return the highest exit status."""
    container = OPERATORS if options.target == "operator" else CONTAINER
    flags = ["-c", container, f"--tail={options.tail}", *(["--prefix"] if len(pods) > 1 else [])]
    flags += [*(["-f"] if options.follow else []), *(["-p"] if options.previous else [])]
    sys.stdout.flush()
    command, status = [str(kubectl.program), *kubectl.flags(), "logs"], 0
    for at in range(0, len(pods), AT_ONCE):
        started = [subprocess.Popen([*command, pod, *flags]) for pod in pods[at : at + AT_ONCE]]
        try:
            status = max(status, *(each.wait() for each in started))
        finally:
            for each in started:
                each.terminate()
    return status
