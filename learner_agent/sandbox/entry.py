"""Entering the sandbox that the node daemon asks for, in one variable: launcher, shipper and program each in its way.

The launcher goes into mounts of its own and keeps what its program may reach and the learner's folder; the program
gets rules of its own beneath that, so that it can neither signal nor trace the launcher. The shipper is kept to the
learner's folder, too: both write and read where a program may have put links.
"""

from __future__ import annotations

import json
import os
import sys
from typing import List, Mapping, Optional

from learner_agent.sandbox import granting, hiding, landlock, namespaces, privileges, seccomp

VARIABLE = "LUTHIER_SANDBOX"
PROGRAM_ENV = "LUTHIER_PROGRAM_ENV"
"""The job's variables that could make the launcher itself run something before it is confined."""
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store", "/proc", "/sys/devices",
    "/sys/class", "/sys/bus", "/sys/block", "/sys/module", "/sys/fs/cgroup", "/sys/kernel/mm", "/etc/alternatives",
    "/etc/bash.bashrc", "/etc/ca-certificates", "/etc/ca-certificates.conf", "/etc/fonts", "/etc/gai.conf",
    "/etc/group", "/etc/host.conf", "/etc/hostname", "/etc/hosts", "/etc/ld.so.cache", "/etc/ld.so.conf",
    "/etc/ld.so.conf.d", "/etc/locale.alias", "/etc/locale.conf", "/etc/localtime", "/etc/magic", "/etc/mime.types",
    "/etc/nsswitch.conf", "/etc/nccl.conf", "/etc/os-release", "/etc/passwd", "/etc/pki/ca-trust/extracted",
    "/etc/pki/tls/cert.pem", "/etc/pki/tls/certs", "/etc/profile", "/etc/protocols", "/etc/resolv.conf",
    "/etc/services", "/etc/ssl/cert.pem", "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/terminfo", "/etc/timezone",
    "/etc/libibverbs.d", "/etc/OpenCL", "/etc/vulkan", "/var/cache/fontconfig", "/etc/debian_version",
    "/etc/lsb-release", "/etc/redhat-release", "/etc/system-release", "/etc/alpine-release", "/etc/arch-release",
    "/etc/SuSE-release", "/etc/inputrc", "/etc/mtab", "/etc/openmpi", "/etc/python3", "/etc/shells", "/etc/ucx",
)  # fmt: skip
"""What any program of the machine reads. Of /etc only what has no secrets: root's program is still root there. So not
the settings of pip, git and wget, which may hold passwords."""
DEVICES = (
    "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/infiniband",
)  # fmt: skip
"""What any program uses besides its GPUs. No terminals: those of the platform's user are not the program's."""


class SandboxFailed(Exception):
    """The sandbox that was asked for could not be entered; nothing is started without it."""


class Sandbox:
    """One learner's. read, write: what its program may reach. pythons: prefixes of Pythons that it runs.

    devices: what it uses of /dev. own: its folder. private: what the platform keeps to itself; of what contains such
    a place, only the rest is granted. tmp: takes the place of /tmp. memory_mib: the most that its /dev/shm holds; 0: as
    much as the kernel lets it. processes: the most that it has, with threads; 0: no limit.
    """

    def __init__(self, asked: str) -> None:
        """Raises SandboxFailed."""
        try:
            value = json.loads(asked)
            self.private = granting.Private(map(str, value.get("private", ())))
            pythons = [
                part for prefix in value.get("pythons", ()) for part in self.private.of_python(str(prefix))
            ]
            self.read = [*self.private.around([*SYSTEM, *map(str, value["read"])]), *pythons]
            self.write = self.private.around(map(str, value["write"]))
            self.devices = [*DEVICES, *map(str, value.get("devices", ()))]
            self.own = str(value["own"])
            self.tmp: Optional[str] = value["tmp"]
            self.namespaces = bool(value["namespaces"])
            self.memory_mib = int(value.get("memory_mib", 0))
            self.processes = int(value.get("processes", 0))
        except (ValueError, KeyError, TypeError) as error:
            raise SandboxFailed("%s cannot be read: %r" % (VARIABLE, error)) from error
        self._own_users = False
        self._rules = -1
        self._filter = b""

    def enter_as_launcher(self) -> None:
        """Confine this process, and make ready what its programs enter. It has one thread. Raises SandboxFailed."""
        try:
            if self.namespaces:
                self._own_users = namespaces.enter(
                    [self.own, *self._existing_writes()],
                    self.tmp,
                    self.read,
                    self.private.paths,
                    self.memory_mib,
                )
            privileges.gain_no_more()
            rights = self._rights()
            self._rules = landlock.ruleset(rights, scoped=True)
            self._filter = seccomp.program(own_ipc=self.namespaces)
            _confine(rights, [self.own])
        except OSError as error:
            raise SandboxFailed(str(error)) from error

    def enter_as_shipper(self) -> None:
        """Confine this process: it needs no more than the learner's folder and its own code. Raises SandboxFailed."""
        try:
            privileges.gain_no_more()
            pythons = [
                part for prefix in (sys.prefix, sys.base_prefix) for part in self.private.of_python(prefix)
            ]
            _confine(self._rights(), [self.own], code=[*pythons, PACKAGE])
        except OSError as error:
            raise SandboxFailed(str(error)) from error

    def enter_as_program(self) -> None:
        """In the launcher's child, before its exec. Raises OSError."""
        privileges.drop()
        if self._own_users and self.processes:
            privileges.limit_processes(self.processes)
        landlock.restrict(self._rules)
        seccomp.install(self._filter)

    def _rights(self) -> "dict[str, int]":
        shared = landlock.WRITE if self.namespaces else landlock.UNLISTED
        return landlock.merged(
            (self.read, landlock.READ),
            (self.devices, landlock.DEVICE),
            (self.write, landlock.WRITE),
            ([namespaces.SHARED_MEMORY], shared),
        )

    def _existing_writes(self) -> List[str]:
        return [path for path in self.write if os.path.exists(path) and not hiding.is_below(path, self.own)]


def _confine(rights: "dict[str, int]", own: List[str], code: "List[str] | tuple[()]" = ()) -> None:
    handle = landlock.ruleset(
        landlock.merged(
            *(([path], allowed) for path, allowed in rights.items()),
            (own, landlock.WRITE),
            (code, landlock.READ),
        ),
        scoped=False,
    )
    landlock.restrict(handle)
    os.close(handle)


def with_program_env(env: Mapping[str, str]) -> "dict[str, str]":
    """The environment for the program, with what was kept from the launcher. Raises SandboxFailed."""
    try:
        later = json.loads(env.get(PROGRAM_ENV, "{}"))
        return {**env, **{str(name): str(value) for name, value in later.items()}}
    except (ValueError, AttributeError) as error:
        raise SandboxFailed("%s cannot be read: %r" % (PROGRAM_ENV, error)) from error


def of(env: Mapping[str, str]) -> Optional[Sandbox]:
    """The sandbox that the node daemon asks for; None if it asks for none. Raises SandboxFailed."""
    return Sandbox(env[VARIABLE]) if env.get(VARIABLE) else None
