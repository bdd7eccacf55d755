"""Supervisor's side of one child process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from salon_jobs.worker.child import ControlChannel
from salon_jobs.worker.in_flight import InFlightRun, InFlightTable
from salon_jobs.worker.worker import WorkerOptions

_CHUNK = 1 << 16
_LONGEST = 1 << 20


def relay_lines(source: int) -> None:
    """Copy a pipe to our standard output until it ends, completing a line cut off by the writer's death.

    A log that cannot be written, for example because its reader is gone, is dropped: it must not block the child.
    """
    rest = b""
    while chunk := os.read(source, _CHUNK):
        whole, newline, rest = (rest + chunk).rpartition(b"\n")
        if len(rest) > _LONGEST:
            whole, newline, rest = whole + newline + rest, b"\n", b""
        if newline:
            _write(whole + newline)
    if rest:
        _write(rest + b"\n")


def _write(lines: bytes) -> None:
    out = getattr(sys.stdout, "buffer", None)
    try:
        if out is None:  # the caller of a command replaced it
            sys.stdout.write(lines.decode(errors="replace"))
            return
        # One call on the binary buffer is never split by another thread's, nor by a line of our own handler.
        out.write(lines)
        out.flush()
    except (OSError, ValueError):
        return


_LAST_LINES_S = 1.0


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """Plan for starting children. ``on_counted`` gets what each reports to have counted, from a thread per child."""

    command: Sequence[str]
    options: WorkerOptions
    on_counted: Callable[[dict[str, Any]], None]


class ChildProcess:
    """A fresh interpreter in its own session, connected to this process and never outliving it.

    The thread that starts it must live as long: the kernel treats that thread as its parent.
    """

    def __init__(self, plan: ChildPlan) -> None:
        """Start ``command --child DESCRIPTORS``. Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs, tempfile.TemporaryFile() as file:
            file.truncate(InFlightTable.size(plan.options.concurrency))
            self._in_flight = InFlightTable(plan.options.concurrency, fileno=file.fileno())
            inherited = (theirs.fileno(), file.fileno())
            self._process = subprocess.Popen(
                [*plan.command, "--skip-checks", "--child", ":".join(map(str, inherited))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                pass_fds=inherited,
                start_new_session=True,
            )
        self._channel = ControlChannel(ours)
        self._options = plan.options
        self._on_counted = plan.on_counted
        self.process_id = 0
        self.report: dict[str, Any] | None = None
        self._began = self._heard = time.monotonic()
        self._threads = [
            threading.Thread(target=work, name=f"salon-jobs-{name}-{self.pid}", daemon=True)
            for name, work in (("listen", self._listen), ("relay", self._relay))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        """ID that the operating system gave it."""
        return self._process.pid

    @property
    def lived_s(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._began

    @property
    def silent_s(self) -> float:
        """Age of its last report in seconds; it grows while a handler holds the GIL, which is not an error."""
        return time.monotonic() - self._heard

    def runs(self) -> list[InFlightRun]:
        """Return what its threads run now, or were running when it died."""
        return self._in_flight.shown()

    def start(self, process_id: int) -> None:
        """Make the child work as this registered process."""
        self.process_id = process_id
        self._channel.send(start={"process_id": process_id, "options": asdict(self._options)})

    def stop(self) -> None:
        """Ask it to stop; a second call forces it."""
        self._channel.send(stop=True)

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> int:
        """Wait until it has ended; return its status, or minus the number of the signal that killed it."""
        return self._process.wait()

    def close(self) -> None:
        """Forward the last lines of an ended child, for a limited time: a handler's leftovers may hold the pipe."""
        for thread in self._threads:
            thread.join(_LAST_LINES_S)
        self._channel.close()

    def _listen(self) -> None:
        for message in self._channel.received():
            self._heard = time.monotonic()
            self._on_counted(message.pop("counted"))
            self.report = message

    def _relay(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        with self._process.stdout as source:
            relay_lines(source.fileno())


def describe_end(status: int) -> str:
    """Describe how a process ended."""
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def same_command() -> list[str]:
    """Return the command line that starts this process again: manage.py, django-admin and -m alike."""
    return [sys.executable, *sys.orig_argv[1:]]
