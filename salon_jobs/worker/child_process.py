"""Supervisor's side of one child process: start, watch, rescue and restart it."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, Final

from django.db import Error, OperationalError

from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.backoff import Backoff
from salon_jobs.core.errors import NotReady
from salon_jobs.core.events import log_event, logger
from salon_jobs.core.program import started_in
from salon_jobs.core.states import moved
from salon_jobs.core.vital import exits_on_error
from salon_jobs.db import statements
from salon_jobs.db.statements import is_lock_conflict
from salon_jobs.process.heartbeat import Heartbeat, application_name, delete_row
from salon_jobs.process.loop import Loop
from salon_jobs.process.probe import Probe
from salon_jobs.worker.child import DEAD_EXIT, KIND, ControlChannel
from salon_jobs.worker.in_flight import InFlightRun, InFlightTable, shared_file
from salon_jobs.worker.maintenance import log_held_up, rescue_process
from salon_jobs.worker.worker import WorkerOptions

_CHUNK = 1 << 16
_LONGEST = 1 << 20
# Longest and shortest time to gather lines: each read takes time from the workers.
_GATHER_S = (0.05, 0.005)
_MUCH = 1 << 13


def relay_lines(source: int) -> None:
    """Copy a pipe to our standard output until it ends, completing a line cut off by the writer's death.

    Reads 20 times a second when little is written, since a read per line would wake this process as often as its
    worker; more often when more is written, so that a full pipe does not stop the writer. Drops a log that cannot be
    written, for example because its reader is gone: it must not block the child.
    """
    rest, gather_s = b"", _GATHER_S[0]
    while chunk := os.read(source, _CHUNK):
        whole, newline, rest = (rest + chunk).rpartition(b"\n")
        if len(rest) > _LONGEST:
            whole, newline, rest = whole + newline + rest, b"\n", b""
        if newline:
            _write(whole + newline)
        # Bursts have pauses: slow down later than speed up.
        gather_s = max(gather_s / 4, _GATHER_S[1]) if len(chunk) >= _MUCH else min(gather_s * 1.25, _GATHER_S[0])
        if len(chunk) < _CHUNK // 4:
            time.sleep(gather_s)
    if rest:
        _write(rest + b"\n")


def _write(lines: bytes) -> None:
    out = getattr(sys.stdout, "buffer", None)
    with suppress(OSError, ValueError):
        if out is None:  # the caller of a command replaced it
            sys.stdout.write(lines.decode(errors="replace"))
            return
        # Other threads never split one call on the binary buffer, nor do lines of our own handler.
        out.write(lines)
        out.flush()


_LAST_LINES_S = 1.0


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """Command and memory that each child is started with.

    ``on_counted`` gets the counts that a child reports, on a thread per child. ``idle`` is the descriptor of the memory
    in which each of the ``processes`` records whether it is idle.
    """

    command: Sequence[str]
    options: WorkerOptions
    on_counted: Callable[[dict[str, Any]], None]
    processes: int
    idle: int


class ChildProcess:
    """A fresh interpreter in its own session, connected to this process and never outliving it.

    The thread that starts it must live as long: the kernel treats that thread as its parent.
    """

    def __init__(self, plan: ChildPlan, number: int) -> None:
        """Start ``command --child DESCRIPTORS``. Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs, shared_file(InFlightTable.size(plan.options.slots)) as file:
            self._in_flight = InFlightTable(plan.options.slots, fileno=file.fileno())
            inherited = (theirs.fileno(), file.fileno(), plan.idle)
            described = ":".join(map(str, (*inherited, number, plan.processes)))
            self._process = subprocess.Popen(
                [*plan.command, "--skip-checks", "--child", described],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                pass_fds=inherited,
                cwd=started_in(),
                start_new_session=True,
            )
        self._ending = threading.Lock()
        self._has_ended = False
        self._channel = ControlChannel(ours)
        self._options = plan.options
        self._on_counted = plan.on_counted
        self.process_id = 0
        self.report: dict[str, Any] | None = None
        self._began = self._reported_at = time.monotonic()
        self._threads = [
            threading.Thread(target=exits_on_error(work), name=f"salon-jobs-{name}-{self.pid}", daemon=True)
            for name, work in (("listen", self._listen), ("relay", self._relay))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        """Process id in the operating system."""
        return self._process.pid

    @property
    def lived_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def silent_s(self) -> float:
        """Age of its last report in seconds. Grows while a handler holds the GIL, which is not an error."""
        return time.monotonic() - self._reported_at

    def runs(self) -> list[InFlightRun]:
        """Return what its threads run now, or ran when it died."""
        return self._in_flight.shown()

    def start(self, process_id: int, *, using: str) -> None:
        """Let the child work as this process, which is registered in the database ``using``."""
        self.process_id = process_id
        self._channel.send(start={"process_id": process_id, "using": using, "options": asdict(self._options)})

    def stop(self) -> None:
        """Ask it to stop; a second call forces it."""
        self._channel.send(stop=True)

    def kill(self) -> None:
        """Kill it, and the processes that its handlers started in its process group."""
        with self._ending:
            if not self._has_ended:
                self._kill_group()

    def wait(self) -> int:
        """Wait until it has ended; return its exit status, or minus the number of the signal that killed it.

        Then ends the processes that its handlers have left running in its process group.
        """
        if not self._has_ended:
            if hasattr(os, "waitid"):  # macOS has it from Python 3.13
                # Until it is reaped, no other group can have its number.
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            else:
                self._process.wait()
            with self._ending:
                self._kill_group()
                self._has_ended = True
        status = self._process.wait()
        self._threads[0].join(_LAST_LINES_S)  # its last report
        return status

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):  # macOS refuses when all of it have ended
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Forward the last lines of an ended child, for a limited time: a daemon of a handler may hold the pipe."""
        for thread in self._threads:
            thread.join(_LAST_LINES_S)
        self._channel.close()

    def _listen(self) -> None:
        for message in self._channel.received():
            self._reported_at = time.monotonic()
            self._on_counted(message.pop("counted"))
            lost = message.get("log_lost", 0) - (self.report or {}).get("log_lost", 0)
            self.report = message
            if lost:
                log_event(logging.WARNING, events.LOG_LOST, process_id=self.process_id, pid=self.pid, records=lost)

    def _relay(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        with self._process.stdout as source:
            relay_lines(source.fileno())


def describe_end(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


# A child that lived no longer than this died "at once"; after the second such death in a row, its slot stays empty for
# a while.
_YOUNG_S = 10.0
_RESTART = Backoff(base=timedelta(seconds=0.5), cap=timedelta(seconds=30), jitter=0.2)
_BURST_TRIES = 3
# How long the other runs of a child that must be killed may take to end.
_DRAIN_S = 2.0
# After the last of these runs leaves the table, its success still has to be written, with others, and logged.
_LAST_WRITES_S = 0.25
# How long a child may be unable to write the ends of its runs while the database answers.
_STUCK_S = 60.0
# Reports come every second; an older one, from before a handler held the GIL, is outdated.
FRESH_S = 5.0


class Life(Enum):
    """State of a child, for its supervisor.

    ========  ==============================================================================  =================
    State     Meaning                                                                         Goes on to
    ========  ==============================================================================  =================
    WORKING   runs jobs                                                                       DRAINING, KILLED
    DRAINING  one of them ran past its limit: it was asked to stop, and others have a moment  ALONE, KILLED
              to end
    ALONE     only those past their limit still run: the last ends are written                DRAINING, KILLED
    KILLED    it was killed, and its jobs will be rescued; ``BLAMELESS``: without a charge
    ========  ==============================================================================  =================
    """

    WORKING = "working"
    DRAINING = "draining"
    ALONE = "alone"
    KILLED = "killed"
    BLAMELESS = "killed, its jobs blameless"


_KILLED: Final = (Life.KILLED, Life.BLAMELESS)
_NEXT: Final[dict[Life, tuple[Life, ...]]] = {
    Life.WORKING: (Life.DRAINING, *_KILLED),
    Life.DRAINING: (Life.ALONE, *_KILLED),
    Life.ALONE: (Life.DRAINING, *_KILLED),
    **dict.fromkeys(_KILLED, ()),
}


class ChildSupervisor(Loop):
    """Loop that keeps one child alive until stopped; problems of another child never delay it.

    A round is the life of one child. The child begins to work once ``registered`` is set, when this process is
    registered.
    """

    def __init__(self, number: int, plan: ChildPlan, heartbeat: Heartbeat, registered: threading.Event) -> None:
        super().__init__(f"child {number}", using=heartbeat.using)
        self._number = number
        self._plan = plan
        self._heartbeat = heartbeat
        self._registered = registered
        self._life, self._moving = Life.WORKING, threading.Lock()
        # When the current child was asked to stop for a late job, and when its state began (monotonic seconds).
        self._draining_since = self._life_since = 0.0
        self._stuck_since: float | None = None
        self._lock_probe = Probe(self._ask_for_lock)
        self.process: ChildProcess | None = None
        self.early_deaths = 0
        self.is_clean = True

    @property
    def lasting_early_deaths(self) -> int:
        """Number of times in a row that a child died at once; 0 once the current one has lived longer."""
        child = self.process
        return self.early_deaths if child is None or child.lived_s < _YOUNG_S else 0

    def stop(self) -> None:
        """Ask the child to stop, and start no other; a second call forces it."""
        super().stop()
        if self.process is not None:
            self.process.stop()

    def kill(self, reason: str, *, blameless: bool = False) -> None:
        """Kill the child at once; ``blameless``: its jobs are requeued without being charged."""
        if (child := self.process) is not None:
            self._kill(child, reason, Life.BLAMELESS if blameless else Life.KILLED)

    def _kill(self, child: ChildProcess, reason: str, life: Life) -> None:
        if self._move(child, life):
            log_event(logging.WARNING, events.CHILD_KILLED, process_id=child.process_id, pid=child.pid, reason=reason)
            child.kill()

    def kill_if_overdue(self) -> None:
        """Kill a child that runs a job past its ``kill_at``, once its other jobs have ended or had some time to end.

        Until then it takes no new jobs, if it can still receive messages.
        """
        child, now = self.process, time.monotonic()
        runs = [] if child is None else child.runs()
        late = sum(run.kill_at <= now for run in runs)
        if child is None or not late:
            return
        if self._life is Life.WORKING:
            self._move(child, Life.DRAINING)
            self._draining_since = now
            child.stop()
        elif self._life in (Life.DRAINING, Life.ALONE):
            self._move(child, Life.DRAINING if late < len(runs) else Life.ALONE)
            has_written = self._life is Life.ALONE and now - self._life_since > _LAST_WRITES_S
            if has_written or now - self._draining_since > _DRAIN_S:
                self._kill(child, "a job ran past its limit", Life.BLAMELESS)

    def kill_if_stuck(self) -> None:
        """Kill a child that could not write an end for a minute in which the database answered.

        Its last report names the jobs. They are charged, since it is unknown whether their effects stand.
        """
        child, now = self.process, time.monotonic()
        report = (child and child.report) or {}
        is_stuck = child is not None and child.silent_s < FRESH_S and "stuck_s" in report
        if child is None or not is_stuck or self._heartbeat.polled_s_ago > conf.process_silent_after.total_seconds():
            self._stuck_since = None
            return
        self._stuck_since = self._stuck_since or now
        if now - self._stuck_since > _STUCK_S and not self._waits_for_lock():
            self._kill(child, f"no end of a run could be written for {report['stuck_s']:.0f} s", Life.KILLED)

    @property
    def _was_killed(self) -> bool:
        return self._life in _KILLED

    def _move(self, child: ChildProcess, life: Life) -> bool:
        """Change the state, unless the child has ended or another thread has killed it; return whether it is new."""
        with self._moving:
            if child is not self.process or self._life in (life, *_KILLED):
                return False
            self._life, self._life_since = moved(self._life, life, _NEXT), time.monotonic()
        return True

    def _ask_for_lock(self) -> bool:
        name = application_name(0 if self.process is None else self.process.process_id)
        [(waits,)] = statements.rows("waits_for_lock", {"application_name": name}, using=self.using)
        return bool(waits)

    def _waits_for_lock(self) -> bool:
        """Return whether the child waits for a lock on our tables, such as a migration's, or whether that is unknown.

        Its writes succeed when the lock is free.
        """
        try:
            return self._lock_probe.answer()
        except (NotReady, Error):
            return True

    def poll(self) -> float:
        """Start a child, wait until it has ended, and rescue its jobs; return the wait before the next one."""
        lived_s = 0.0
        try:
            end, lived_s = self._run_child()
        except Exception as error:  # such as too many processes; the slot must not stay empty
            logger.exception("a worker process could not be started, or its jobs not rescued")
            if (child := self.process) is not None:
                self._heartbeat.drop(child.process_id)  # others rescue its jobs
                child.kill()
                child.wait()
                self.process = None
            self.early_deaths += 1
            end = f"{type(error).__name__}: {error}"
        if self._plan.options.burst:
            is_done = end is None and self._life is Life.WORKING
            if not is_done and self.early_deaths >= _BURST_TRIES:
                self.is_clean = False
                is_done = True
            if is_done:
                self.stopping.set()
        wait_s = _RESTART.delay(self.early_deaths - 1).total_seconds() if self.early_deaths > 1 else 0.0
        if end is not None and not self.stopping.is_set():
            fields: dict[str, Any] = {"lived_s": round(lived_s, 3), "restart_in_s": round(wait_s, 3)}
            log_event(logging.ERROR, events.CHILD_DIED, end=end, **fields)
        return wait_s

    def _run_child(self) -> tuple[str | None, float]:
        """Run one child to its end and rescue its jobs; return how it ended (None: cleanly) and its age in seconds."""
        with self._moving:
            self._life, self._stuck_since = Life.WORKING, None
        child = self.process = ChildProcess(self._plan, self._number)
        self._registered.wait()
        if self.stopping.is_set():
            child.stop()
        else:
            self.outage.wait_out(lambda: self._register(child), self.stopping.wait)
        status, lived_s = child.wait(), child.lived_s
        self.process = None
        # A handler can exit its process with status 0; a child that exits properly has no running job.
        in_order = status == 0 and not child.runs()
        # The rescue handles an unexpected death; a child that had not begun to work has ended cleanly enough.
        self.is_clean = in_order or not self.stopping.is_set() or child.report is None
        died_early = not in_order and not self._was_killed and lived_s < _YOUNG_S
        self.early_deaths = self.early_deaths + 1 if died_early else 0
        if child.process_id:
            self._heartbeat.drop(child.process_id)
            # While stopping, rescue only once: other processes rescue its jobs eventually.
            self.outage.wait_out(lambda: self._sign_off(child, status, in_order=in_order), self.stopping.wait)
        child.close()
        return (None if in_order else describe_end(status)), lived_s

    def _register(self, child: ChildProcess) -> None:
        options = self._plan.options
        process_id = self._heartbeat.insert(
            KIND,
            pid=child.pid,
            concurrency=options.concurrency,
            queues=options.served,
            on_gone=lambda: self.kill("its row is gone: others declared it dead, or a failover lost its claims"),
        )
        child.start(process_id, using=self.using)

    def _sign_off(self, child: ChildProcess, status: int, *, in_order: bool) -> None:
        """Delete the row of a child that has ended; if it did not end ``in_order``, rescue its jobs.

        Jobs that had begun are charged, unless it gave them back or is ``BLAMELESS``. Raises database errors.
        """
        if in_order:
            delete_row(child.process_id, using=self.using)
            return
        runs = child.runs()
        ran = [run.job_id for run in runs]
        overdue: list[InFlightRun] = []
        charged = [*ran, *(child.report or {}).get("unwritten", ())]
        # It stopped as asked, but not in time: it has given its jobs back, or tried to.
        gave_back = self.stopping.is_set() and 0 < status != DEAD_EXIT
        if gave_back:
            charged = []
        elif self._life is Life.BLAMELESS:
            overdue, charged = [run for run in runs if run.kill_at <= self._life_since], []
        try:
            rescue_process(
                child.process_id,
                None,
                using=self.using,
                end=describe_end(status),
                charged=charged,
                ran=ran,
                overdue=overdue,
                died=not gave_back and self._life is not Life.BLAMELESS,
            )
        except OperationalError as error:
            if not is_lock_conflict(error):
                raise
            # The sweep for silent processes finds it; the next child must not wait for that.
            log_held_up(child.process_id, error)
