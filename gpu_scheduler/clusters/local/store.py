"""What a restarted daemon must know: one JSON file per gang, replaced atomically.

Times are seconds of the machine's boot clock, so that a change of the wall clock moves no deadline. After a restart of
the machine none of the processes is left. The files hold the shippers' secrets: mode 0600. Of the program's own secrets
they hold the names alone: a program that runs has them, and one that does not run yet is launched again.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from gpu_scheduler.clusters.base import EndReason, GangSpec, LearnerPhase
from gpu_scheduler.clusters.local.processes import Identity
from gpu_scheduler.clusters.local.protocol import spec_from_json, spec_to_json

logger = logging.getLogger(__name__)


def boot_clock() -> float:
    """Seconds since the machine started; not affected by restarts of the daemon."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(slots=True)
class LearnerRecord:
    """State of one learner. mark: in the environment of all its processes; devices: indices on its node."""

    rank: int
    node: str
    uid: str
    mark: str
    devices: list[int]
    phase: LearnerPhase = LearnerPhase.PREPARING
    exit_code: int | None = None
    reason: EndReason | None = None
    message: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)
    output: str = ""
    """What its preparation printed, if that failed."""
    launcher: Identity | None = None
    shipper: Identity | None = None
    shipper_code: str = ""
    """Fingerprint of the code that the shipper was started from; "" if an earlier version started it."""
    started: bool = False
    shipper_done: bool = False
    kill_reason: EndReason | None = None
    """Why we killed it, if we did; becomes its reason."""
    leaving: EndReason | None = None
    """Why its program cannot go on, although it was still running: the platform was stopped, or its node was lost."""


@dataclass(slots=True)
class GangRecord:
    """State of one gang. stop_at and kill_at: boot clock; ports: for the learners' rendezvous."""

    launch: GangSpec
    learners: list[LearnerRecord]
    boot: str
    ports: list[int] = field(default_factory=list)
    stop_at: float | None = None
    kill_at: float | None = None
    lock: list[str] = field(default_factory=list)
    """The versions chosen for the job's requirements in this attempt."""
    environments: list[str] = field(default_factory=list)
    """The folders in which its learners' packages are, once they are ready."""
    secrets_lost: bool = False
    """Read from its file, which does not hold the values of its secrets: no program of it can be started any more."""


class Store:
    """The folder of gang files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def save(self, gang: GangRecord) -> None:
        """Replace the gang's file durably."""
        path = self._path(gang.launch.name)
        temporary = path.with_suffix(".tmp")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps(_to_json(gang)))  # dump would encode it in Python, part by part
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def forget(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def load(self) -> Iterator[GangRecord]:
        """Every gang on disk. A file that cannot be read is renamed to .unreadable."""
        for path in sorted(self._folder.glob("*.json")):
            try:
                yield _from_json(json.loads(path.read_text("utf-8")))
            except (OSError, ValueError, KeyError, TypeError) as error:
                logger.error(
                    "gang file unreadable, set aside", extra={"file": path.name, "error": str(error)}
                )
                path.replace(path.with_suffix(".unreadable"))

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"


_LEARNER_FIELDS = tuple(field.name for field in fields(LearnerRecord))


def _to_json(gang: GangRecord) -> dict[str, Any]:
    learners = []
    for learner in gang.learners:
        value: dict[str, Any] = {name: getattr(learner, name) for name in _LEARNER_FIELDS}
        for which in ("launcher", "shipper"):
            identity = getattr(learner, which)
            value[which] = None if identity is None else identity.as_json()
        learners.append(value)
    launch = spec_to_json(gang.launch)
    return {
        "launch": launch | {"secrets": dict.fromkeys(gang.launch.secrets, "")},
        "learners": learners,
        "boot": gang.boot,
        "ports": gang.ports,
        "stop_at": gang.stop_at,
        "kill_at": gang.kill_at,
        "lock": gang.lock,
        "environments": gang.environments,
    }


def _from_json(value: dict[str, Any]) -> GangRecord:
    learners = []
    node_lost = value.pop("node_lost", False)  # an earlier version's, of all learners
    for saved in value.pop("learners"):
        for which in ("launcher", "shipper"):
            saved[which] = None if saved[which] is None else Identity.from_json(saved[which])
        saved["phase"] = LearnerPhase(saved["phase"])
        saved.setdefault("kill_reason", saved.get("doomed"))  # their names in earlier versions
        saved.setdefault("numbers", saved.get("evidence") or {})
        saved.setdefault("leaving", EndReason.NODE_LOST if node_lost else None)
        for name in ("reason", "kill_reason", "leaving"):
            saved[name] = _end_reason(saved.get(name))
        # Fields of another version are left out; none of them is needed to find the processes again.
        learners.append(LearnerRecord(**{name: saved[name] for name in saved if name in _LEARNER_FIELDS}))
    launch = spec_from_json(value.pop("launch"))
    return GangRecord(launch=launch, learners=learners, secrets_lost=bool(launch.secrets), **value)


def _end_reason(saved: str | None) -> EndReason | None:
    """Earlier versions stored other words, too: such a learner has ended, and its exit code says how."""
    if not saved:
        return None
    return EndReason(saved) if saved in set(EndReason) else EndReason.EXITED
