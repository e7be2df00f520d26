"""Runs the user's program: one pipe for stdout and stderr, its exit code, and the way out when it must stop.

It waits for the shipper's ``ready``, starts the program in a session of its own, writes what it prints to the
spool byte for byte, and passes a halt on: a program that imported ``learner_agent.training`` sees the flag first,
gets SIGTERM after the grace and SIGKILL after as much again; any other gets SIGTERM at once and SIGKILL after the
grace, and one that has only just begun is given a moment to import it. All of the program's group gets it, and only
when nobody of the group is left has the program ended: a shell dies of it at once, while what it runs still saves.
SIGTERM to the launcher is the same wish by another road; a second one changes nothing. If the launcher dies, the
kernel kills the program. One thread, standard library only, Python 3.8 or newer; holds no secret.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from learner_agent import processes
from learner_agent.log_segments import LogWriter
from learner_agent.settings import LauncherSettings, launcher_settings
from learner_agent.spool import Spool
from learner_agent.untrusted_files import now_ms, put_aside, replace_file, sound_number

READ_BYTES = 64 * 1024
PIPE_BYTES = 1024 * 1024
POLL_S = 0.2
"""How often the launcher looks for a wish to halt."""
IMPORT_S = 2.0
"""So old a program that has not imported ``training`` is taken for one that knows nothing of us."""
LOCK_S = 2.0
"""How long a lock that is held may be the shipper's, which tries it now and then to see whether we live."""
NAP_S = 0.005
"""While small reads follow each other faster than this, they are gathered: a chatty program costs no CPU."""
DAY_S = 24 * 3600
ORPHANS_S = 0.5
"""How long a finished program's leftover children may keep the pipe open and silent."""
CHATTER_S = 10.0
"""How long they may keep it open at all."""
EXIT_NOT_STARTED = 128 + signal.SIGTERM
EXIT_NOT_FOUND = 127
EXIT_LOST = 128 + signal.SIGKILL


@dataclass
class Halting:
    """A wish that is being carried out. Times are monotonic; aware: the program looks for the flag itself."""

    gen: int
    intent: str
    aware: bool
    term_at: float
    kill_at: float
    termed: bool = False
    killed: bool = False


class Launcher:
    """One run of one program."""

    def __init__(self, settings: LauncherSettings, argv: List[str], env: Mapping[str, str]) -> None:
        self.settings = settings
        self.argv = argv
        self.env = dict(env)
        self.spool = Spool(settings.state_dir)
        self.asked_by_signal = False
        self.halting: Optional[Halting] = None
        self.status: Optional[int] = None
        """Of the process that we started: the program, or a shell around it."""
        self.ended_at: Optional[float] = None
        """When the program had ended, by the monotonic clock."""
        self.started_at = 0.0
        self.pid = 0
        self.unsaid: Dict[str, bytes] = {}

    def run(self) -> int:
        """Run to the program's end and return its exit code (128 + signal if a signal ended it)."""
        self.spool.create()
        ended = self.spool.read("exit")
        if ended is not None:  # started again after the end: the answer stands
            return int(sound_number(ended.get("code"), EXIT_LOST, most=255))
        lock = self._hold_lock()
        if lock is None:
            sys.stderr.write("learner_agent: another launcher runs in %s\n" % self.settings.state_dir)
            return 75
        self.lock = lock
        self.log = LogWriter(self.spool, cap=self.settings.spool_bytes)
        try:
            if self.spool.segments() or self.spool.has("phase"):
                return self._end(EXIT_LOST, lost=True)  # a launcher before us died, and its program with it
            return self._run_new()
        finally:
            os.close(self.lock)
            self.spool.notify(state=True)  # from now on `exit` counts

    def _hold_lock(self) -> Optional[int]:
        give_up = time.monotonic() + LOCK_S
        while True:
            lock = self.spool.hold_lock()
            if lock is not None or time.monotonic() > give_up:
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
        read_end, write_end = os.pipe()
        processes.widen(read_end, PIPE_BYTES)
        try:
            self._start(ready, write_end)
        except OSError as error:
            os.close(write_end)
            self.log.write(("learner_agent: cannot start the program: %s\n" % error).encode(), now_ms())
            return self._end(EXIT_NOT_FOUND)
        os.close(write_end)
        self._say("phase", b"PROCESSING")
        try:
            self._watch(read_end)
        finally:
            os.close(read_end)
        return self._end(EXIT_LOST if self.status is None else processes.exit_code(self.status))

    def _note_signal(self, number: int, frame: Any) -> None:
        self.asked_by_signal = True

    def _wait_until_ready(self) -> Optional[Dict[str, Any]]:
        """Wait for the shipper: what to run with; None if it must not start at all."""
        began = time.monotonic()
        while True:
            ready = self.spool.read("ready")
            if self.asked_by_signal or self.spool.has("halt"):
                self._check_halt()
                return None
            if ready is not None:
                return ready
            refused = self.spool.read("refused")
            if refused is not None:
                self.log.write(("luthier: %s\n" % refused.get("message", "")).encode(), now_ms())
                return None
            time.sleep(0.01 if time.monotonic() - began < 10 else 0.1)

    def _start(self, ready: Mapping[str, Any], output: int) -> None:
        env = self._program_env(ready)
        command = self.argv or ["/bin/sh", "-c", self.settings.command]
        processes.adopt_orphans()
        parent = os.getpid()
        program = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=str(self.settings.model_dir),
            env=env,
            start_new_session=True,
            preexec_fn=lambda: processes.die_with(parent),
        )
        self.pid, self.started_at = program.pid, time.monotonic()
        program.returncode = 0  # we reap by ourselves, together with orphans

    def _program_env(self, ready: Mapping[str, Any]) -> Dict[str, str]:
        env = {name: value for name, value in self.env.items() if name != "LUTHIER_SECRET"}
        env.update({str(name): str(value) for name, value in (ready.get("env") or {}).items()})
        if ready.get("resume_from"):
            env["RESUME_FROM"] = str(ready["resume_from"])
        env["TRAINING_COMMAND"] = self.settings.command or " ".join(shlex.quote(word) for word in self.argv)
        paths = [str(self._importable()), env.get("PYTHONPATH", "")]
        env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        # Python buffers a pipe by the block: nothing would be seen for minutes.
        env.setdefault("PYTHONUNBUFFERED", "1")
        for name, folder in (
            ("CHECKPOINT_DIR", self.settings.checkpoint_dir),
            ("RESULT_DIR", self.settings.result_dir),
            ("LOG_DIR", self.settings.log_dir),
        ):
            env[name] = str(folder)
        return env

    def _importable(self) -> Path:
        """A directory that holds this package and nothing else, so that no other module of ours shadows theirs."""
        place = self.settings.state_dir / "python"
        place.mkdir(exist_ok=True)
        link = place / "learner_agent"
        if not link.exists():
            link.symlink_to(Path(__file__).resolve().parent)
        return place

    # --- while it runs

    def _watch(self, pipe: int) -> None:
        """Copy the pipe to the spool, pass wishes on and reap, until the program has ended and the pipe is dry."""
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
        look_at, last_read, quiet_since = 0.0, 0.0, 0.0
        while True:
            ready = {key.fd for key, _ in selector.select(POLL_S)}
            now = time.monotonic()
            if woken in ready:
                processes.drain(woken)
            if pipe in ready:
                if now - last_read < NAP_S and self.status is None:
                    time.sleep(NAP_S)
                big, at_end = self._copy(pipe)
                last_read = 0.0 if big else time.monotonic()
                quiet_since = now
                if at_end:
                    selector.unregister(pipe)
                    pipe = -1
            self._reap()
            if self._has_ended(now) and self.ended_at is not None:
                if pipe < 0:
                    processes.signal_group(self.pid, signal.SIGKILL)
                    return
                # Silence before its end is no sign: its last words may have come since we looked at the pipe.
                quiet_s = now - max(quiet_since, self.ended_at)
                if quiet_s > ORPHANS_S / 2 or now - self.ended_at > CHATTER_S:
                    processes.signal_group(self.pid, signal.SIGKILL)
                    processes.kill_children()
                if quiet_s > ORPHANS_S:
                    return
            if now >= look_at or woken in ready:
                look_at = now + POLL_S
                self._say_again()
                if self.ended_at is None and not self.spool.is_lock(self.lock):
                    self._end_robbed(pipe)
                self._check_halt()
                self._press(now)

    def _copy(self, pipe: int) -> "tuple[bool, bool]":
        """Move what is in the pipe to the spool: was it much, and is this the end?"""
        big = False
        for _ in range(16):  # then look around: a program that never stops printing must still hear a halt
            try:
                data = os.read(pipe, READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                return big, True
            self.log.write(data, now_ms())
            if len(data) < READ_BYTES // 2:
                break
            big = True
        self.spool.notify()
        return big, False

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
        """Say whether the program is over, and note when it was first."""
        if self.ended_at is None and self.status is not None:
            halting = self.halting
            may_save = halting is not None and halting.termed and not halting.killed
            if not (may_save and processes.group_lives(self.pid)):
                self.ended_at = now
                self._say("phase", b"EXITED")
        return self.ended_at is not None

    def _check_halt(self) -> None:
        """Take up a new or a harder wish; a softer or repeated one changes nothing."""
        if self.ended_at is not None:
            return
        request = self.spool.read("halt")
        if request is None and self.asked_by_signal:
            request = {"intent": "HALT", "gen": 0, "grace_s": self.settings.grace_s}
            self._say("halt", json.dumps(request).encode())
        if request is None:
            return
        gen, intent = int(sound_number(request.get("gen"), 0)), str(request.get("intent", "HALT"))
        grace_s = sound_number(request.get("grace_s"), self.settings.grace_s, most=DAY_S)
        now = time.monotonic()
        aware = intent != "CANCEL" and self.spool.has("imported")
        halting = self.halting
        if halting is not None and (intent == halting.intent or intent != "CANCEL"):
            if (
                aware and not halting.aware and not halting.termed
            ):  # it had only just begun, and knows us after all
                halting.aware, halting.term_at, halting.kill_at = True, now + grace_s, now + 2 * grace_s
            if gen > halting.gen:
                halting.gen = gen
                self._report_seen()
            return
        if aware:
            term_at = now + grace_s
        elif intent == "CANCEL":
            term_at = now
        else:
            term_at = max(now, self.started_at + IMPORT_S)
        fresh = Halting(gen, intent, aware, term_at, term_at + grace_s)
        if halting is not None:
            fresh.termed = halting.termed
            fresh.kill_at = min(fresh.kill_at, halting.kill_at)
        self.halting = fresh
        self._report_seen()

    def _report_seen(self) -> None:
        assert self.halting is not None
        seen = {"gen": self.halting.gen, "aware": self.halting.aware, "at_ms": now_ms()}
        self._say("halt_seen", json.dumps(seen).encode())

    def _press(self, now: float) -> None:
        halting = self.halting
        if halting is None or self.ended_at is not None:
            return
        if now >= halting.term_at and not halting.termed:
            halting.termed = True
            processes.signal_group(self.pid, signal.SIGTERM)
        if now >= halting.kill_at and not halting.killed:
            halting.killed = True
            processes.signal_group(self.pid, signal.SIGKILL)
            processes.kill_children()

    def _say(self, name: str, content: bytes) -> None:
        """Replace a small file of the spool: now, or as soon as the disk takes it. A full disk ends no program."""
        self.unsaid.pop(name, None)
        self.unsaid[name] = content
        self._say_again()

    def _say_again(self) -> None:
        if not self.unsaid:
            return
        for name, content in list(self.unsaid.items()):
            try:
                replace_file(self.spool.root / name, content)
            except OSError:
                return
            del self.unsaid[name]
        self.spool.notify(state=True)

    def _end_robbed(self, pipe: int) -> None:
        """The program removed the spool and what it had printed and saved: nobody could follow it any more.

        It ends, and why is in a new spool, behind a hole in the log.
        """
        processes.signal_group(self.pid, signal.SIGKILL)
        processes.kill_children()
        before, self.spool = self.log, Spool(self.settings.state_dir)  # the bell is another one, too
        self._create_spool()
        put_aside(self.spool.root / "lock")
        self.lock = self.spool.hold_lock() or self.lock
        self.log = LogWriter(self.spool, cap=before.cap, size=before.size, lines=before.lines, crc=before.crc)
        if pipe >= 0:
            self._copy(pipe)  # what it had still printed comes before our word
        self.log.write(b"luthier: the program removed JOB_STATE_DIR, so it was ended\n", now_ms())

    def _create_spool(self) -> None:
        while True:
            try:
                return self.spool.create()
            except OSError:
                time.sleep(POLL_S)  # the disk is full

    def _end(self, code: int, *, lost: bool = False) -> int:
        """Write down how it ended, as the last thing, and return the exit code."""
        self.log.close()
        ending = {
            "code": code,
            "signal": os.WTERMSIG(self.status) if self.status and os.WIFSIGNALED(self.status) else None,
            "started": self.status is not None or lost,
            "halted": self._was_halted(),
            "finished": self.spool.has("finished"),
            "size": None if lost else self.log.size,
            "lines": self.log.lines,
            "crc": None if lost else self.log.crc,
            "at_ms": now_ms(),
        }
        self._say("exit", json.dumps(ending).encode())
        self._say("phase", b"EXITED")
        while self.unsaid:
            time.sleep(POLL_S)
            try:
                self.spool.create()  # removing it may have been the last thing that the program did
            except OSError:
                pass
            self._say_again()
        return code

    def _was_halted(self) -> bool:
        """Say whether a halt had reached the program: it asked and was told, or was signalled, or never began."""
        told = self.spool.has("halt_noticed")
        return told or (self.halting is not None and (self.halting.termed or self.status is None))


def main(argv: List[str]) -> int:
    """Entry point: settings from the environment, the program from argv or TRAINING_COMMAND."""
    return Launcher(launcher_settings(os.environ, needs_command=not argv), argv, os.environ).run()
