"""The child's side of a supervised process."""

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
    """Is one end of a socket pair. A process that dies, however it dies, ends the other side's ``received``."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._sending = threading.Lock()

    def send(self, **message: Any) -> bool:
        """Send one message, from any thread; False when the other side is gone."""
        try:
            with self._sending:
                self._end.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def received(self) -> Iterator[dict[str, Any]]:
        """Yield what arrives until the other side is gone; one thread's to use."""
        try:
            with self._end.makefile("rb") as lines:
                for line in lines:
                    if line.endswith(b"\n"):  # else it died while it wrote
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
    """Is a loop that a supervisor's child runs: it reports each second."""

    def run(self) -> bool:
        """Work until stopped; True when it ended cleanly."""
        ...

    def stop(self) -> None:
        """Ask for the end; a second call forces it."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return what readiness and metrics show, also of one that does not do its work."""
        ...

    def require_ready(self) -> None:
        """Raise NotReady when the loop does not do its work."""
        ...

    def report(self) -> dict[str, Any]:
        """Return what was counted since the last report, as JSON can carry it."""
        ...


def run_child(kind: str, descriptors: str, make_loop: Callable[[int, dict[str, Any]], ReportingLoop]) -> NoReturn:
    """Work for the supervisor that started this process; main thread only. Never returns.

    ``make_loop`` gets the descriptor of the board and what the supervisor says at the start, ``process_id`` among it.
    Status 0: it ended in order, asked to or not; its supervisor replaces it at once, unless that is ending too.
    """
    link_end, board = map(int, descriptors.split(":"))
    for inherited in (link_end, board):
        os.set_inheritable(inherited, False)
    for number in (signal.SIGTERM, signal.SIGINT):
        # A service manager may signal every process of a group; the supervisor alone decides. Not SIG_IGN: what a
        # handler starts would inherit that.
        signal.signal(number, _pass)
    _die_with_parent()
    child = _Child(kind, ControlChannel(socket.socket(fileno=link_end)))
    clean = child.run(lambda start: make_loop(board, start))
    if clean:  # else a job has outlived its grace, and so has this process
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
        # What was imported stays: the garbage collector need not look through it again (80,000 objects, 43 ms).
        gc.freeze()
        clean = loop.run()
        self._ended.set()
        reporter.join(_REPORT_EVERY_S)
        connections.close_all()
        log_event(logging.INFO if clean else logging.WARNING, events.PROCESS_STOPPED, **fields, clean=clean)
        return clean

    def _obey(self) -> None:
        """Hand on what the supervisor says; without a supervisor, end before others run our jobs again."""
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
    """Let the kernel kill us when the thread that started us ends: also while a handler holds the GIL. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
