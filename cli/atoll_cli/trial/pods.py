"""Runs pods as processes of this machine. Does what a kubelet does: start, restart in place, end, report the end."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from atoll_local.controlplane import free_port
from atoll_local.nodes import TPU_ENVIRONMENT
from atoll_local.process import spawn
from atoll_operator.api.group import LABEL_UNIT, Object
from atoll_operator.plan.pods.view import PodView, view
from atoll_runtime.contract import (
    ENV_JOURNAL_DIR,
    ENV_RUN_FILE,
    ENV_SHARD,
    ENV_TLS_DIR,
    ENV_UNIT,
    EXIT_OK,
    EXIT_RESTART,
    JOURNAL_DIR,
    dump,
    parse_unit,
)

LEFT_OUT = ("HOME", "NUMBA_CACHE_DIR")
"""Variables that are not taken from a pod, because they name paths of a container."""
NICE = 10
"""Nice value of a learner that gives way to others."""
TAIL = 64 * 1024
"""Bytes at the end of a log that are searched for the last error."""
_ERROR = re.compile(r" ERROR atoll[.\w]*: (.+)")


@dataclass
class Pod:
    """A pod's JSON, and the process of its container."""

    body: Object
    folder: Path
    """The pod's own folder: its log, its temporary files, its journal."""
    tls: Path
    created: float
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    told: int = 0
    """The incarnation that a learner's process must have; 0 for a syncer."""
    incarnation: int = 0
    """The incarnation that ended last."""
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    code: int | None = None
    """Exit status of the last process that ended, in a shell's form."""
    words: str = ""
    """The last error in its log."""
    finished: float | None = None
    log_start: int = 0
    """Bytes in the log when the process started."""
    deadline: float | None = None
    """When a process that was asked to end is killed."""

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def view(self) -> PodView:
        """The pod as the API server would show it."""
        return replace(
            view(self.body),
            uid=self.uid,
            incarnation=self.told,
            node="localhost",
            phase="Succeeded" if not self.alive and self.code == EXIT_OK else "Running",
            ready=self.alive,
            scheduled_at=self.created,
            started_at=self.started if self.alive else None,
            deletion_time=self.deadline,
            exit_code=self.code,
            exit_message=self.words,
            ended_incarnation=self.incarnation if self.told else None,
            finished_at=self.finished,
        )

    def signal(self, number: int) -> None:
        if self.process is not None:
            self.process.send_signal(number)

    def note_end(self, now: float) -> None:
        """Record how the process ended, if it has."""
        if self.process is not None and not self.alive:
            status = self.process.returncode
            self.code, self.finished, self.process = status if status >= 0 else 128 - status, now, None
            self.incarnation, self.words = self.told, _last_error(self.folder / "log", self.log_start)


class Pods:
    """All pods of the run. `folder` has `run.json` and the certificates, and gets their logs and files."""

    def __init__(self, folder: Path) -> None:
        self.all: dict[str, Pod] = {}
        self._folder = folder
        self._ports: set[int] = set()
        self._coordinators: dict[tuple[str, int], int] = {}

    def port(self) -> int:
        """Return a TCP port for one server alone, which starts later and may restart."""
        while (port := free_port("")) in self._ports:
            pass
        self._ports.add(port)
        return port

    def of_unit(self, unit: str) -> list[Pod]:
        return [pod for pod in self.all.values() if pod.body["metadata"]["labels"].get(LABEL_UNIT) == unit]

    def create(self, body: Object, member: str, now: float) -> None:
        """Create the pod and start its process, unless there is one of this name.

        Args:
            member: name of the pod's certificate.
        """
        name = body["metadata"]["name"]
        if name not in self.all:
            own, certificate = self._folder / "pods" / name, self._folder / "certificates" / member
            pod = Pod(body, own, certificate, now, told=view(body).incarnation)
            (pod.folder / "tmp").mkdir(parents=True)
            self.all[name] = pod
            self._start(pod, now)

    def renew(self, name: str, incarnation: int, now: float) -> None:
        """Restart the pod's process as another incarnation."""
        pod = self.all[name]
        pod.note_end(now)
        if pod.process is not None:
            pod.signal(9)
            pod.process.wait()
            pod.code, pod.finished, pod.words = EXIT_RESTART, now, ""
        pod.told = incarnation
        self._start(pod, now)

    def remove(self, name: str, grace: float, now: float) -> None:
        """Ask the process to end; it is killed after `grace` seconds."""
        pod = self.all[name]
        if pod.deadline is None:
            pod.signal(15)
        pod.deadline = min(pod.deadline or now + grace, now + grace)

    def look(self, now: float) -> None:
        """Record which processes have ended, delete pods that were asked to end, and restart syncers."""
        for pod in list(self.all.values()):
            if pod.deadline is not None and pod.deadline <= now:
                pod.signal(9)
            pod.note_end(now)
            if pod.deadline is not None and pod.process is None:
                del self.all[pod.name]
            elif not pod.told and pod.process is None:  # a syncer, which keeps its journal
                self._start(pod, now)

    def give_way(self, units: Iterable[str]) -> None:
        """Lower the priority of these units' processes, so that others get the cores. On a cluster each has a host."""
        for pod in (pod for unit in units for pod in self.of_unit(unit)):
            if pod.process is not None and pod.alive:
                os.setpriority(os.PRIO_PGRP, pod.process.pid, NICE)
                # Each process has a session of its own, and Linux may share the cores among sessions.
                with contextlib.suppress(OSError):
                    Path(f"/proc/{pod.process.pid}/autogroup").write_text(str(NICE))

    def close(self) -> None:
        """Kill every process."""
        for pod in self.all.values():
            pod.signal(9)
        for pod in self.all.values():
            if pod.process is not None:
                pod.process.wait()

    def _start(self, pod: Pod, now: float) -> None:
        [main] = pod.body["spec"]["containers"]
        told = {item["name"]: item["value"] for item in main["env"] if "value" in item}
        environment = {name: value for name, value in told.items() if name not in LEFT_OUT}
        environment |= TPU_ENVIRONMENT | dict(self._places(pod, told))
        _, *arguments = main["command"]  # the first word is the image's `python`
        log = pod.folder / "log"
        pod.log_start = log.stat().st_size if log.exists() else 0
        pod.process = spawn([sys.executable, *arguments], log, environment)
        pod.started = now

    def _places(self, pod: Pod, told: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Yield variables with files and addresses of this machine in place of a container's."""
        yield ENV_RUN_FILE, str(self._folder / "run.json")
        yield ENV_TLS_DIR, str(pod.tls)
        yield "TMPDIR", str(pod.folder / "tmp")
        if ENV_JOURNAL_DIR in told:
            yield ENV_JOURNAL_DIR, told[ENV_JOURNAL_DIR].replace(JOURNAL_DIR, str(pod.folder / "journal"))
            yield ENV_SHARD, pod.name.rpartition("-")[2]
        if ENV_UNIT in told:
            unit = parse_unit(told[ENV_UNIT])
            key = unit.unit, pod.told
            if key not in self._coordinators:
                self._coordinators[key] = self.port()
            coordinator, address = (f"localhost:{port}" for port in (self._coordinators[key], self.port()))
            changed = {"incarnation": pod.told, "chips": 0, "coordinator": coordinator, "address": address}
            yield ENV_UNIT, dump(unit.model_copy(update=changed))


def _last_error(log: Path, start: int) -> str:
    """Return the last error that a process with this start in the log wrote, `Reason: message`; empty for none."""
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - TAIL))
        found = _ERROR.findall(file.read().decode(errors="replace"))
    return found[-1] if found else ""
