"""Child's side of a supervised process."""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn, Protocol

from django.db import connections

from salon_jobs.core import events, tracing
from salon_jobs.core.errors import NotReady
from salon_jobs.core.events import log_event
from salon_jobs.process.heartbeat import name_connections
from salon_jobs.process.service import end_at_once


class ControlChannel:
    """One end of a socket pair. When a process dies, however it dies, the other side's ``received`` ends."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._sending = threading.Lock()

    def send(self, **message: Any) -> bool:
        """Send one message, from any thread; return False when the other side is gone."""
        try:
            with self._sending:
                self._end.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def received(self) -> Iterator[dict[str, Any]]:
        """Yield incoming messages until the other side is gone. Not thread-safe."""
        try:
            with self._end.makefile("rb") as lines:
                for line in lines:
                    if line.endswith(b"\n"):  # otherwise it died while writing
                        yield json.loads(line)
        except OSError:
            return

    def close(self) -> None:
        """Close this end."""
        self._end.close()


_REPORT_EVERY_S = 1.0
_ORPHANED = 1
_FLUSH_S = 2.0
_PR_SET_PDEATHSIG = 1


class ReportingLoop(Protocol):
    """Loop that a supervisor's child runs: it reports each second."""

    def run(self) -> bool:
        """Work until stopped; return True if it ended cleanly."""
        ...

    def stop(self) -> None:
        """Request a stop; a second call forces it."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return what readiness and metrics show, even when the loop is not working."""
        ...

    def require_ready(self) -> None:
        """Raise NotReady when the loop is not working."""
        ...

    def report(self) -> dict[str, Any]:
        """Return what was counted since the last report, in a form that JSON can represent."""
        ...


def run_child(kind: str, descriptors: str, make_loop: Callable[[int, dict[str, Any]], ReportingLoop]) -> NoReturn:
    """Work for the supervisor that started this process; main thread only. Never returns.

    ``make_loop`` gets the descriptor of the in-flight table and the supervisor's start message, including
    ``process_id``. Status 0: it ended cleanly, asked to or not; the supervisor replaces it at once, unless it is
    stopping too.
    """
    link_end, board = map(int, descriptors.split(":"))
    for inherited in (link_end, board):
        os.set_inheritable(inherited, False)
    for number in (signal.SIGTERM, signal.SIGINT):
        # A service manager may signal every process of a group; only the supervisor decides. Not SIG_IGN: processes
        # that a handler starts would inherit that.
        signal.signal(number, _pass)
    _die_with_parent()
    child = _Child(kind, ControlChannel(socket.socket(fileno=link_end)))
    clean = child.run(lambda start: make_loop(board, start))
    if clean:  # otherwise a job has outlived its grace, and so has this process
        tracing.flush(_FLUSH_S)
    end_at_once(0 if clean else 1)


class _Child:
    def __init__(self, kind: str, link: ControlChannel) -> None:
        self._kind = kind
        self._link = link
        self._told: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._loop: ReportingLoop | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._obey, name="salon-jobs-link", daemon=True).start()

    def run(self, make_loop: Callable[[dict[str, Any]], ReportingLoop]) -> bool:
        start = self._told.get()
        if start is None:
            return True
        name_connections(start["process_id"])
        self._loop = loop = make_loop(start)
        fields: dict[str, Any] = {"kind": self._kind, "process_id": start["process_id"]}
        log_event(logging.INFO, events.PROCESS_STARTED, **fields, pid=os.getpid())
        reporter = threading.Thread(target=self._report, args=(loop,), name="salon-jobs-report", daemon=True)
        reporter.start()
        threading.Thread(target=self._stop_when_told, args=(loop,), name="salon-jobs-stop", daemon=True).start()
        # Imported objects stay: the garbage collector need not traverse them again (80,000 objects, 43 ms).
        gc.freeze()
        clean = loop.run()
        self._ended.set()
        reporter.join(_REPORT_EVERY_S)
        connections.close_all()
        log_event(logging.INFO if clean else logging.WARNING, events.PROCESS_STOPPED, **fields, clean=clean)
        return clean

    def _obey(self) -> None:
        """Forward the supervisor's messages; without a supervisor, exit before others run our jobs again."""
        for message in self._link.received():
            self._told.put(message.get("start"))
        os._exit(_ORPHANED)

    def _stop_when_told(self, loop: ReportingLoop) -> None:
        while True:
            self._told.get()
            loop.stop()

    def _report(self, loop: ReportingLoop) -> None:
        while True:
            last = self._ended.is_set()
            report: dict[str, Any] = {"facts": loop.facts()}
            try:
                loop.require_ready()
            except NotReady as error:
                report["fault"] = str(error)
            self._link.send(**report, counted=loop.report())
            if last:
                return
            self._ended.wait(_REPORT_EVERY_S)


def _pass(_number: int, _frame: FrameType | None) -> None:
    return


def _die_with_parent() -> None:
    """Make the kernel kill us when the thread that started us ends, even while a handler holds the GIL. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
