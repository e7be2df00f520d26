"""Runs the user's program: one pipe for stdout and stderr, its exit code, and its orderly end when it must stop.

It waits for the shipper's ``ready``, starts the program in a session of its own, writes what it prints to the spool
byte for byte, but for the values of its secrets (`masking`), and passes a halt on (`halting` has the deadlines).
Signals go to the program's whole group, and after SIGTERM the program has ended only when no process of the group is
left: a shell dies at once, while what it started still saves. SIGTERM to the launcher requests a halt, too; a second
one changes nothing. If the launcher dies, the kernel kills the program. The job's setup commands run before it in the
same way, one after the other; one that fails is the program's own failure, and a service that one started in a session
of its own lives until the attempt ends. One thread, standard library only, Python 3.8 or newer; holds no secret of the
platform.
"""

from __future__ import annotations

import json
import os
import selectors
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, FrozenSet, List, Mapping, Optional

from learner_agent import halting, processes
from learner_agent.halting import Halting
from learner_agent.log_segments import LogWriter
from learner_agent.masking import Mask, masks
from learner_agent.sandbox import entry
from learner_agent.sandbox.entry import Sandbox
from learner_agent.settings import SHOWN_CHARS, LauncherSettings, launcher_settings
from learner_agent.spool import Spool
from learner_agent.untrusted_files import now_ms, number_or, put_aside, replace_file, unlink

READ_BYTES = 64 * 1024
PIPE_BYTES = 1024 * 1024
POLL_S = 0.2
"""How often the launcher checks for a request to halt."""
LATE_PART = 50
"""The program starts later by this part of the time that its inputs took, at most: waiting costs little."""
LOCK_S = 2.0
"""How long the shipper may hold the lock: it tries it now and then to see whether the launcher is alive."""
GATHER_S = 0.005
"""Small reads that follow each other faster than this are gathered: a program that prints a lot costs little CPU."""
ORPHANS_S = 0.5
"""How long leftover children of a finished program may keep the pipe open and silent."""
ORPHANS_MAX_S = 10.0
"""How long they may keep it open at all."""
LEFT_RUNNING = "luthier: the command has ended, so what it left running in the background was ended, too"
MARKS = ("imported", "checks_halt", "checks_save", "halt_noticed", "finished")
"""What a program leaves in the spool by calls of learner_agent.training."""
HIDDEN = frozenset({"LUTHIER_SECRET", "LUTHIER_SETUP", entry.VARIABLE, entry.PROGRAM_ENV})
"""Variables that no program gets."""
EXIT_NOT_STARTED = 128 + signal.SIGTERM
EXIT_NOT_FOUND = 127
EXIT_LOST = 128 + signal.SIGKILL


class Launcher:
    """One run of one program."""

    def __init__(
        self,
        settings: LauncherSettings,
        argv: List[str],
        env: Mapping[str, str],
        sandbox: Optional[Sandbox] = None,
    ) -> None:
        self.settings = settings
        self.sandbox = sandbox
        self.argv = argv
        self.env = dict(env)
        self.spool = Spool(settings.state_dir)
        self.halt_by_signal = False
        self.halting: Optional[Halting] = None
        self.status: Optional[int] = None
        """Of the process that the launcher started: the program, or a shell around it."""
        self.ended_at: Optional[float] = None
        """When the program had ended, by the monotonic clock."""
        self.started_at = 0.0
        self.pid = 0
        self.setup: Optional[Dict[str, Any]] = None
        """The setup command that ended the attempt: {"n", "of", "command"}; None if none did."""
        self.at_line_start = True
        self.left_some = False
        self.services: FrozenSet[int] = frozenset()
        """What the setup left running in sessions of their own: the program may need it."""
        self.mask = Mask(masks(self.env))
        self.unwritten: Dict[str, bytes] = {}
        """Small files of the spool that the disk has not taken yet."""

    def run(self) -> int:
        """Run to the program's end and return its exit code (128 + signal if a signal ended it).

        Returns EX_TEMPFAIL at once if another launcher holds the spool.
        """
        self.spool.create()
        ended = self.spool.read("exit")
        if ended is not None:  # started again after the end: the result remains
            return int(number_or(ended.get("code"), EXIT_LOST, most=255))
        lock = self._hold_lock()
        if lock is None:
            sys.stderr.write("learner_agent: another launcher runs in %s\n" % self.settings.state_dir)
            return os.EX_TEMPFAIL
        self.lock = lock
        self.log = LogWriter(self.spool, cap=self.settings.spool_bytes)
        try:
            if self.spool.segments() or self.spool.has("phase"):
                return self._end(EXIT_LOST, lost=True)  # an earlier launcher died, and its program with it
            return self._run_new()
        finally:
            os.close(self.lock)
            self.spool.notify(state=True)  # from now on `exit` counts

    def _hold_lock(self) -> Optional[int]:
        deadline = time.monotonic() + LOCK_S
        while True:
            lock = self.spool.hold_lock()
            if lock is not None or time.monotonic() > deadline:
                return lock
            time.sleep(0.01)

    def _run_new(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note_signal)
        for folder in (
            self.settings.model_dir,
            self.settings.checkpoint_dir,
            self.settings.result_dir,
            self.settings.log_dir,
        ):
            folder.mkdir(parents=True, exist_ok=True)
        ready = self._wait_until_ready()
        if ready is None:
            return self._end(EXIT_NOT_STARTED)
        env = self._program_env(ready)
        if not self._set_up(env):
            return self._end(
                EXIT_LOST if self.status is None else processes.exit_code(self.status) or EXIT_NOT_STARTED
            )
        try:
            self._run_one(self.argv or _in_shell(self.settings.command), env)
        except (OSError, subprocess.SubprocessError) as error:
            self._say("luthier: cannot start the program: %s" % error)
            return self._end(EXIT_NOT_FOUND)
        return self._end(EXIT_LOST if self.status is None else processes.exit_code(self.status))

    def _set_up(self, env: Mapping[str, str]) -> bool:
        """Run the setup commands, each with a heading in the log. False if one failed, or a halt came meanwhile."""
        commands = self.settings.setup
        for n, command in enumerate(commands, 1):
            shown = " ".join(command.split())[:SHOWN_CHARS]
            self._say("=== luthier: setup %d of %d: %s ===" % (n, len(commands), shown))
            self.setup = {"n": n, "of": len(commands), "command": shown}
            try:
                self._run_one(["/bin/sh", "-e", "-c", command], env, phase=b"SETUP")
            except (
                OSError,
                subprocess.SubprocessError,
            ) as error:  # an earlier one may have removed the code folder
                self._say("luthier: cannot start the setup command: %s" % error)
                self.status = EXIT_NOT_FOUND << 8  # as waitpid returns it
            if self.status != 0 and self.halting is None:
                code = EXIT_LOST if self.status is None else processes.exit_code(self.status)
                self._say(
                    "luthier: setup command %d of %d exited with code %d: %s"
                    % (n, len(commands), code, shown)
                )
            if self.status != 0 or self.halting is not None:
                return False
            self.status = self.ended_at = self.setup = None
            for mark in MARKS:  # of the command, which is not the program
                unlink(str(self.spool.root / mark))
        if commands:
            self.services = frozenset(processes.children())
            self._say("=== luthier: setup done; the program starts ===")
        return True

    def _run_one(self, argv: List[str], env: Mapping[str, str], phase: bytes = b"PROCESSING") -> None:
        """Run a command to its end, with a pipe of its own. Raises OSError if it cannot start."""
        read_end, write_end = os.pipe()
        processes.widen(read_end, PIPE_BYTES)
        try:
            try:
                self._start(argv, env, write_end)
            finally:
                os.close(write_end)
            self._write("phase", phase)
            self._watch(read_end)
        finally:
            os.close(read_end)

    def _say(self, line: str) -> None:
        """Put a line of the launcher's own into the log."""
        self._print(self.mask.flush())
        start = "" if self.at_line_start else "\n"
        self.log.write(("%s%s\n" % (start, line)).encode(errors="replace"), now_ms())
        self.at_line_start = True

    def _note_signal(self, number: int, frame: Any) -> None:
        self.halt_by_signal = True

    def _wait_until_ready(self) -> Optional[Dict[str, Any]]:
        """Wait for the shipper. Return what to run with, or None if the program must not start."""
        began = time.monotonic()
        while True:
            ready = self.spool.read("ready") if self.spool.has("ready") else None
            if self.halt_by_signal or self.spool.has("halt"):
                self._check_halt()
                return None
            if ready is not None:
                return ready
            refused = self.spool.read("refused") if self.spool.has("refused") else None
            if refused is not None:
                self.log.write(("luthier: %s\n" % refused.get("message", "")).encode(), now_ms())
                return None
            time.sleep(min(0.1, max(0.01, (time.monotonic() - began) / LATE_PART)))

    def _start(self, argv: List[str], env: Mapping[str, str], output: int) -> None:
        processes.adopt_orphans()
        parent = os.getpid()
        program = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=str(self.settings.model_dir),
            env=dict(env),
            start_new_session=True,
            preexec_fn=lambda: self._before_exec(parent),
        )
        self.pid, self.started_at = program.pid, time.monotonic()
        program.returncode = 0  # _reap does it, together with orphans

    def _before_exec(self, parent: int) -> None:
        """In the child; what raises here ends the start."""
        processes.die_with(parent)
        if self.sandbox is not None:
            self.sandbox.enter_as_program()

    def _program_env(self, ready: Mapping[str, Any]) -> Dict[str, str]:
        env = {name: value for name, value in self.env.items() if name not in HIDDEN}
        env.update({str(name): str(value) for name, value in (ready.get("env") or {}).items()})
        if ready.get("resume_from"):
            env["RESUME_FROM"] = str(ready["resume_from"])
        env["TRAINING_COMMAND"] = self.settings.command or " ".join(shlex.quote(word) for word in self.argv)
        paths = [str(self._importable()), env.get("PYTHONPATH", "")]
        env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        # Python buffers pipes in blocks: nothing would be visible for minutes.
        env.setdefault("PYTHONUNBUFFERED", "1")
        for name, folder in (
            ("CHECKPOINT_DIR", self.settings.checkpoint_dir),
            ("RESULT_DIR", self.settings.result_dir),
            ("LOG_DIR", self.settings.log_dir),
        ):
            env[name] = str(folder)
        return env

    def _importable(self) -> Path:
        """A directory with this package only, so that no other module of the platform shadows one of the program's."""
        place = self.settings.state_dir / "python"
        place.mkdir(exist_ok=True)
        link = place / "learner_agent"
        if not link.exists():
            link.symlink_to(Path(__file__).resolve().parent)
        return place

    # --- while it runs

    def _watch(self, pipe: int) -> None:
        """Copy the pipe to the spool, pass requests on and reap, until the program has ended and the pipe is empty."""
        os.set_blocking(pipe, False)
        woken, wake = os.pipe()
        for end in (woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            try:
                self._loop(selector, pipe, woken)
            finally:
                signal.set_wakeup_fd(-1)
                os.close(woken)
                os.close(wake)

    def _loop(self, selector: selectors.BaseSelector, pipe: int, woken: int) -> None:
        check_at, last_read, quiet_since = 0.0, 0.0, 0.0
        while True:
            ready = {key.fd for key, _ in selector.select(POLL_S)}
            now = time.monotonic()
            if woken in ready:
                processes.drain(woken)
            if pipe in ready:
                if now - last_read < GATHER_S and self.status is None:
                    time.sleep(GATHER_S)
                big, at_end = self._copy(pipe)
                last_read = 0.0 if big else time.monotonic()
                quiet_since = now
                if at_end:
                    selector.unregister(pipe)
                    pipe = -1
            self._reap()
            if self._has_ended(now) and self.ended_at is not None:
                ended_s = now - self.ended_at
                if pipe < 0 and (self.setup or ended_s > ORPHANS_S / 2 or not self._left_any()):
                    self._end_leftovers()
                    return
                # Silence before its end proves nothing: it may have printed since the last read.
                quiet_s = now - max(quiet_since, self.ended_at)
                if pipe >= 0 and (quiet_s > ORPHANS_S / 2 or ended_s > ORPHANS_MAX_S):
                    self._end_leftovers()
                if pipe >= 0 and (quiet_s > ORPHANS_S or (self.setup and ended_s > ORPHANS_MAX_S)):
                    return
            if now >= check_at or woken in ready:
                check_at = now + POLL_S
                self._write_pending()
                if self.ended_at is None and not self.spool.is_lock(self.lock):
                    self._end_without_spool(pipe)
                self._check_halt()
                self._signal_if_due(now)

    def _left_any(self) -> bool:
        """True if the program, which has ended, left a process behind. What its setup left is none of it."""
        return processes.group_lives(self.pid) or not self.services.issuperset(processes.children())

    def _end_leftovers(self) -> None:
        """A program that only starts another in the background looks as if it had done its work: the log says more."""
        if self.setup is not None:
            processes.signal_group(
                self.pid, signal.SIGKILL
            )  # what left the session may be a service for the program
            return
        if self._left_any() and self.status == 0 and not self.left_some:
            self.left_some = True
            self._say(LEFT_RUNNING)
        processes.signal_group(self.pid, signal.SIGKILL)
        processes.kill_children()

    def _copy(self, pipe: int) -> "tuple[bool, bool]":
        """Move what is in the pipe to the spool. Return whether it was much, and whether the pipe is at its end."""
        big = False
        for _ in range(16):  # then do the rest: a halt must reach a program that never stops printing
            try:
                data = os.read(pipe, READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                return big, True
            self._print(self.mask.feed(data))
            self.at_line_start = data.endswith(b"\n")
            if len(data) < READ_BYTES // 2:
                break
            big = True
        self.spool.notify()
        return big, False

    def _print(self, shown: bytes) -> None:
        if shown:
            self.log.write(shown, now_ms())

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pid:
                self.status = status

    def _has_ended(self, now: float) -> bool:
        """True if the program is over; records when it ended."""
        if self.ended_at is None and self.status is not None:
            current = self.halting
            may_save = current is not None and current.has_termed and not current.has_killed
            if not (may_save and processes.group_lives(self.pid)):
                self.ended_at = now
        return self.ended_at is not None

    def _check_halt(self) -> None:
        """Take up a new or a stricter request."""
        if self.ended_at is not None:
            return
        request = self.spool.read("halt")
        if request is None and self.halt_by_signal:
            request = {"intent": "HALT", "gen": 0, "grace_s": self.settings.grace_s}
            self._write("halt", json.dumps(request).encode())
        if request is None:
            return
        seen = halting.updated(
            self.halting,
            request,
            has_imported=self.spool.has("imported"),
            started_at=self.started_at,
            now=time.monotonic(),
            default_grace_s=self.settings.grace_s,
        )
        if seen is not None:
            self.halting = seen
            report = {"gen": seen.gen, "aware": seen.is_aware, "at_ms": now_ms()}
            self._write("halt_seen", json.dumps(report).encode())

    def _signal_if_due(self, now: float) -> None:
        current = self.halting
        if current is None or self.ended_at is not None:
            return
        if now >= current.term_at and not current.has_termed:
            current.has_termed = True
            processes.signal_group(self.pid, signal.SIGTERM)
        if now >= current.kill_at and not current.has_killed:
            current.has_killed = True
            processes.signal_group(self.pid, signal.SIGKILL)
            processes.kill_children()

    def _write(self, name: str, content: bytes) -> None:
        """Replace a small file of the spool now, or once the disk has room. A full disk ends no program."""
        self.unwritten.pop(name, None)
        self.unwritten[name] = content
        self._write_pending()

    def _write_pending(self) -> None:
        if not self.unwritten:
            return
        for name, content in list(self.unwritten.items()):
            try:
                replace_file(self.spool.root / name, content)
            except OSError:
                return
            del self.unwritten[name]
        self.spool.notify(state=True)

    def _end_without_spool(self, pipe: int) -> None:
        """The program removed the spool and with it what it had printed and saved: end it.

        The reason is in a new spool, after a gap in the log.
        """
        processes.signal_group(self.pid, signal.SIGKILL)
        processes.kill_children()
        before, self.spool = self.log, Spool(self.settings.state_dir)  # with a FIFO of its own
        self._create_spool()
        put_aside(self.spool.root / "lock")
        self.lock = self.spool.hold_lock() or self.lock
        self.log = LogWriter(self.spool, cap=before.cap, size=before.size, lines=before.lines, crc=before.crc)
        if pipe >= 0:
            self._copy(pipe)  # what it still printed comes before the reason
        self._print(self.mask.flush())
        self.log.write(b"luthier: the program removed JOB_STATE_DIR, so it was terminated\n", now_ms())

    def _create_spool(self) -> None:
        while True:
            try:
                return self.spool.create()
            except OSError:
                time.sleep(POLL_S)  # the disk is full

    def _end(self, code: int, *, lost: bool = False) -> int:
        """Record how it ended, as the last step, and return the exit code."""
        processes.kill_children()  # services of a setup that failed, or of a program that could not start
        self._print(self.mask.flush())
        self.log.close()
        ending = {
            "code": code,
            "signal": os.WTERMSIG(self.status) if self.status and os.WIFSIGNALED(self.status) else None,
            "started": self.status is not None or (lost and self.spool.has("ready")),
            "halted": self._was_halted(),
            "finished": self.spool.has("finished"),
            "setup": self.setup,
            "size": None if lost else self.log.size,
            "lines": self.log.lines,
            "crc": None if lost else self.log.crc,
            "at_ms": now_ms(),
        }
        self._write("exit", json.dumps(ending).encode())
        while self.unwritten:
            time.sleep(POLL_S)
            try:
                self.spool.create()  # removing it may have been the program's last act
            except OSError:
                pass
            self._write_pending()
        return code

    def _was_halted(self) -> bool:
        """True if a halt had reached the program: it called halt_requested(), was signaled, or never started."""
        noticed = self.spool.has("halt_noticed") or (self.setup is not None and self.halting is not None)
        return noticed or (self.halting is not None and (self.halting.has_termed or self.status is None))


def _in_shell(command: str) -> List[str]:
    """A command of several lines is a script, which ends at its first line that fails."""
    return ["/bin/sh", *(["-e"] if "\n" in command else []), "-c", command]


def main(argv: List[str]) -> int:
    """Entry point: settings from the environment, the program from argv or TRAINING_COMMAND. Raises SandboxFailed."""
    settings, sandbox = launcher_settings(os.environ, needs_command=not argv), entry.of(os.environ)
    if sandbox is not None:
        sandbox.enter_as_launcher()
    return Launcher(settings, argv, entry.with_program_env(os.environ), sandbox).run()
