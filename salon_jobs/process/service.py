"""Life cycle of a process: health server, wait for the database, register, run, and stop in order."""

from __future__ import annotations

import ctypes
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import NoReturn, Protocol, TypeAlias

from django.db import connections

from salon_jobs.conf import debug
from salon_jobs.conf import settings as conf
from salon_jobs.core import events, metrics, tracing
from salon_jobs.core.errors import NotReady, SchemaMissing
from salon_jobs.core.events import log_event
from salon_jobs.core.metrics import Sample
from salon_jobs.core.program import HANGUP, stop_signals
from salon_jobs.core.vital import die_by, exits_on_error
from salon_jobs.db.pools import give_pools_room
from salon_jobs.db.read_only import refuse_read_only_servers
from salon_jobs.process.health_server import HealthServer
from salon_jobs.process.heartbeat import Heartbeat
from salon_jobs.process.known_problems import KnownProblems
from salon_jobs.process.preflight import answering, check_schema, check_tables, check_worker
from salon_jobs.process.probe import KEPT_S, Probe

_SIGNAL_POLL_S = 0.2
_RETRY_S = 0.5
_MARGIN_S = 0.25
# Time to send the last spans and errors: normally, and within the margin.
_EXPORT_S = 2.0
_LAST_EXPORT_S = 0.1
_PR_SET_PDEATHSIG = 1


class ServedLoop(Protocol):
    """A loop that a service runs, such as a scheduler."""

    def run(self) -> bool:
        """Work until stopped; return True if it ended cleanly."""
        ...

    def stop(self) -> None:
        """Request the stop; a second call forces it."""
        ...

    def facts(self) -> dict[str, object]:
        """Return facts for readiness. Raises NotReady when the loop does not do its work."""
        ...

    def samples(self) -> list[Sample]:
        """Return the current metrics without querying the database, which may be failing; never raises for that."""
        ...


MakeLoop: TypeAlias = Callable[[Heartbeat], ServedLoop]


class Service:
    """One loop, run as a registered process with a health endpoint. One per process.

    ``make_loop`` is called before the first query, so that the loop can prepare while the database is awaited; its
    ``run`` is called once the process is registered. ``verdict`` reads the problems of the whole deployment, which
    readiness lists: none of them makes a process unready, since to restart it would mend nothing.
    """

    def __init__(
        self,
        kind: str,
        make_loop: MakeLoop,
        *,
        using: str,
        health_address: tuple[str, int],
        concurrency: int = 1,
        queues: Sequence[str] | None = None,
        burst: bool = False,
        verdict: Callable[[], list[str]] = list,
    ) -> None:
        self._kind = kind
        self._make_loop = make_loop
        self._burst = burst
        self._problems = KnownProblems(verdict)
        self._database = Probe(
            lambda: (check_tables if self._schema_checked else check_schema)(using),
            kept_s=KEPT_S,
            afterwards=self._problems.renew,
        )
        self._health: HealthServer | None = None
        try:
            self._health = HealthServer(health_address, self._readiness, self._samples)
        except NotReady as error:
            if not debug():
                raise
            # Probably a second service on a developer's machine, where nothing probes it.
            log_event(logging.WARNING, events.HEALTH_NOT_LISTENING, kind=kind, error=str(error))
        self._heartbeat = Heartbeat(kind, using=using, concurrency=concurrency, queues=queues)
        self._loop: ServedLoop | None = None
        self._stopping = threading.Event()
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._schema_checked = self._registered = False
        self._clean = True
        self._error: BaseException | None = None

    @property
    def address(self) -> tuple[str, int] | None:
        """Address of the health endpoint; None if it was in use."""
        return None if self._health is None else self._health.address

    def run(self) -> None:
        """Run until a signal or the end of a burst. Main thread only.

        Raises errors that keep the process from starting (ForbiddenRole; in a burst also NotReady and SchemaMissing).
        Ends the interpreter at once, with status 1, when a job outlives its grace, since its thread cannot be ended
        otherwise, and in any case when the grace is over, whatever the loop is waiting for. If a vital thread dies, it
        stops as after a signal and raises RuntimeError.
        """
        refuse_read_only_servers()
        # The handlers only put into a SimpleQueue, which is safe at any bytecode, unlike an Event.
        signals = self._signals
        die_by(self._end_after)
        for number in stop_signals():
            signal.signal(number, lambda number, _frame: signals.put(number))
        if self._health is not None:
            self._health.start()
            address = "{}:{}".format(*self._health.address)
            log_event(logging.INFO, events.HEALTH_LISTENING, kind=self._kind, address=address)
        end = float("inf")
        work = threading.Thread(target=exits_on_error(self._work), name=f"salon-jobs-{self._kind}", daemon=True)
        work.start()
        while work.is_alive():
            if time.monotonic() > end:
                log_event(logging.WARNING, events.PROCESS_STOPPED, kind=self._kind, clean=False)
                tracing.flush(_LAST_EXPORT_S)
                exit_at_once(1)
            with suppress(queue.Empty):
                if signals.get(timeout=_SIGNAL_POLL_S) == HANGUP and self._stopping.is_set():
                    continue
                end = min(end, time.monotonic() + conf.shutdown_grace.total_seconds() - _SIGNAL_POLL_S - _MARGIN_S)
                self._stopping.set()
                if self._loop is not None:
                    self._loop.stop()
        unclean = self._error is None and not self._clean
        clean = self._clean and self._error is None
        log_event(logging.INFO if clean else logging.WARNING, events.PROCESS_STOPPED, kind=self._kind, clean=clean)
        if unclean:
            tracing.flush(max(_LAST_EXPORT_S, min(_EXPORT_S, end - time.monotonic())))
            exit_at_once(1)
        if self._health is not None:
            self._health.stop()
        if self._stopping.is_set():
            # Exporters of traces and errors flush while the interpreter exits. An agent that does not answer must not
            # delay the exit by half a minute.
            last = threading.Timer(_EXPORT_S, exit_at_once, [0 if self._error is None else 1])
            last.daemon = True
            last.start()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            give_pools_room()
            self._loop = self._make_loop(self._heartbeat)
            if not self._register():
                return
            process_id = self._heartbeat.process_id
            log_event(logging.INFO, events.PROCESS_STARTED, kind=self._kind, process_id=process_id, pid=os.getpid())
            self._clean = self._loop.run()
        except Exception as error:  # raised again in the main thread
            self._error, self._clean = error, False
        finally:
            self._heartbeat.stop()
            self._heartbeat.join()
            connections.close_all()

    def _end_after(self, thread: str, error: BaseException) -> None:
        """Stop as after a signal, and fail, because a thread has died; the service manager restarts this process."""
        if self._error is None:
            self._error = RuntimeError(f"the thread {thread} has died: {type(error).__name__}; see the log")
            self._error.__cause__ = error
        self._signals.put(signal.SIGTERM)

    def _register(self) -> bool:
        """Wait until database, role and schema are usable, and insert our row; return False when stopped first."""
        logged: NotReady | SchemaMissing | None = None
        while not self._stopping.is_set():
            try:
                check_worker(self._heartbeat.using)
                self._schema_checked = True
                with answering():
                    self._heartbeat.register()
            except (NotReady, SchemaMissing) as error:
                connections.close_all()
                if self._burst:
                    raise
                if str(error) != str(logged):
                    # The missing tables change while migrate runs; the request to run it was already logged.
                    told = isinstance(logged, SchemaMissing) and isinstance(error, SchemaMissing)
                    logged = error
                    log_event(
                        logging.INFO if told else logging.ERROR, events.WAITING, code=error.code, detail=str(error)
                    )
                self._stopping.wait(_RETRY_S)
            else:
                self._registered = True
                return True
        return False

    def _readiness(self) -> dict[str, object]:
        """Return facts about this process. Raises when it cannot work now. Runs in a health thread."""
        self._database.answer()
        answered_s_ago = round(self._database.age_s, 1)
        own = {"kind": self._kind, "database_answered_s_ago": answered_s_ago, **self._own_facts()}
        return {**own, **self._problems.facts()}

    def _own_facts(self) -> dict[str, object]:
        """Return the facts this process knows without the database. Raises NotReady."""
        if self._loop is None or not self._registered:
            raise NotReady("the process is starting")
        if self._stopping.is_set():
            raise NotReady("the process is stopping")
        # Others declare a silent process dead; it claims nothing from then on.
        conf.require_alive(self._heartbeat.polled_s_ago, "no heartbeat was written")
        return self._loop.facts()

    def _samples(self) -> list[Sample]:
        try:
            self._own_facts()
            ready = 1
        except NotReady:
            ready = 0
        return [
            Sample(metrics.PROCESS_INFO, 1, (self._kind, release())),
            Sample(metrics.READY, ready, (self._kind,)),
            *(self._loop.samples() if self._loop is not None else ()),
        ]


def release() -> str:
    """Return the installed version of salon_jobs, or "" when it is only on the path."""
    try:
        return version("salon-jobs")
    except PackageNotFoundError:
        return ""


def die_with_parent() -> None:
    """Have the kernel kill us when the thread that started us ends, even while a handler holds the GIL. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def exit_at_once(status: int) -> NoReturn:
    """Exit the interpreter at once, without waiting for threads that cannot be ended."""
    try:
        with suppress(Exception):  # handlers of the host may raise
            logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # there is none, it is closed, or its reader is gone
                stream.flush()
    finally:
        os._exit(status)
