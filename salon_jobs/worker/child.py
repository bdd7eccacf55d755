"""Child's side of a supervised process."""

from __future__ import annotations

import gc
import json
import logging
import os
import queue
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, NoReturn

from salon_jobs.conf import settings as conf
from salon_jobs.core import events, tracing
from salon_jobs.core.errors import NotReady
from salon_jobs.core.events import log_event, logger
from salon_jobs.core.program import stop_signals
from salon_jobs.core.run_log import JobLog
from salon_jobs.core.vital import die_by, exits_on_error, vital
from salon_jobs.db.pools import give_pools_room
from salon_jobs.db.read_only import refuse_read_only_servers
from salon_jobs.jobs import registry
from salon_jobs.jobs.enqueue import wake_ups
from salon_jobs.process.heartbeat import name_connections
from salon_jobs.process.loop import Loop
from salon_jobs.process.service import die_with_parent, exit_at_once
from salon_jobs.worker.async_handlers import stop_copied_loop
from salon_jobs.worker.forks import guard_copies
from salon_jobs.worker.in_flight import IdleTable, InFlightTable
from salon_jobs.worker.worker import Worker, WorkerOptions

KIND: Final = "worker"
# Exit status after a vital thread has died.
DEAD_EXIT: Final = 70
_REPORT_EVERY_S = 1.0
_ORPHANED = 1
_FLUSH_S = 2.0
# Seconds without progress in writing the ends of runs after which a report names them.
_NAMED_AFTER_S = 5.0


class ControlChannel:
    """One end of a socket pair. When the process at the other end dies, by whatever cause, ``received`` ends."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._sending = threading.Lock()

    def send(self, **message: Any) -> None:
        """Send one message, from any thread, unless the other side is gone."""
        with suppress(OSError), self._sending:
            self._end.sendall(json.dumps(message).encode() + b"\n")

    def received(self) -> Iterator[dict[str, Any]]:
        """Yield incoming messages until the other side is gone. Not thread-safe."""
        with suppress(OSError), self._end.makefile("rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):  # an incomplete line: it died while writing
                    yield json.loads(line)

    def close(self) -> None:
        self._end.close()


def run_child(descriptors: str) -> NoReturn:
    """Run a worker for the supervisor that started this process; main thread only. Never returns.

    ``descriptors`` are those of the channel, the in-flight table and the idle table, followed by this process's number
    and the number of processes. Exits with status 0 if it ended cleanly, asked to or not; the supervisor then replaces
    it at once, unless it is stopping too.
    """
    channel_end, in_flight, idle, number, processes = map(int, descriptors.split(":"))
    for inherited in (channel_end, in_flight, idle):
        os.set_inheritable(inherited, False)
    table = IdleTable(processes, number=number, fileno=idle)
    for signalled in stop_signals():
        # A service manager may signal every process of a group; only the supervisor decides. Not SIG_IGN: processes
        # that a handler starts would inherit that.
        signal.signal(signalled, lambda _number, _frame: None)
    wake_ups.on_commit = None  # of EAGER
    guard_copies()
    os.register_at_fork(after_in_child=stop_copied_loop)
    die_with_parent()
    if conf.keep_log != "none":
        JobLog().listen()
    is_clean = _Child(ControlChannel(socket.socket(fileno=channel_end)), in_flight, table).run()
    if is_clean:  # otherwise a job has outlived its grace, and so has this process
        tracing.flush(_FLUSH_S)
    exit_at_once(0 if is_clean else 1)


class _Child:
    def __init__(self, channel: ControlChannel, in_flight: int, idle: IdleTable) -> None:
        self._channel = channel
        self._in_flight = in_flight
        self._idle = idle
        # The start message, then None for each request to stop.
        self._messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._worker: Worker | None = None
        die_by(self._die)
        threading.Thread(target=exits_on_error(self._receive), name="salon-jobs-channel", daemon=True).start()

    def run(self) -> bool:
        start = self._messages.get()
        if start is None:
            return True
        refuse_read_only_servers()
        process_id, using, options = start["process_id"], start["using"], WorkerOptions(**start["options"])
        give_pools_room()
        name_connections(process_id, using=using)
        in_flight = InFlightTable(options.slots, fileno=self._in_flight)
        worker = self._worker = Worker(process_id, options, using=using, in_flight=in_flight, idle=self._idle)
        fields: dict[str, Any] = {"kind": KIND, "process_id": process_id}
        log_event(logging.INFO, events.PROCESS_STARTED, **fields, pid=os.getpid())
        reporter = _Reporter(worker, self._channel)
        reporter.start()
        threading.Thread(
            target=exits_on_error(self._stop_on_request), args=(worker,), name="salon-jobs-stop", daemon=True
        ).start()
        # Imported objects stay, so the garbage collector need not traverse them again (80,000 objects, 43 ms).
        gc.freeze()
        if registry.has_coroutines():
            # Hundreds of waiting runs are not garbage; a collection every 700 objects took half of the time.
            gc.set_threshold(max(gc.get_threshold()[0], 100 * options.async_concurrency), *gc.get_threshold()[1:])
        with vital():
            is_clean = worker.run()
        reporter.stop()
        reporter.join(_REPORT_EVERY_S)
        log_event(logging.INFO if is_clean else logging.WARNING, events.PROCESS_STOPPED, **fields, clean=is_clean)
        return is_clean

    def _die(self, thread: str, error: BaseException) -> None:
        """Exit at once: the state of this process is unreliable. The supervisor rescues its jobs and replaces it."""
        if (worker := self._worker) is not None:
            self._channel.send(facts=worker.facts(), unwritten=worker.finisher.unwritten_ids(), counted={"rows": []})
        exit_at_once(DEAD_EXIT)

    def _receive(self) -> None:
        """Queue the supervisor's messages; exit when it is gone, before other processes run our jobs again."""
        for message in self._channel.received():
            self._messages.put(message.get("start"))
        os._exit(_ORPHANED)

    def _stop_on_request(self, worker: Worker) -> None:
        while True:
            self._messages.get()
            worker.stop()


class _Reporter(Loop):
    """Loop that reports to the supervisor every second, and once more at the end."""

    def __init__(self, worker: Worker, channel: ControlChannel) -> None:
        super().__init__("report", using=worker.using)
        self._worker = worker
        self._channel = channel

    def poll(self) -> float:
        report: dict[str, Any] = {"facts": self._worker.facts()}
        if (stuck_s := self._worker.finisher.stuck_s) > _NAMED_AFTER_S:
            report |= {"stuck_s": stuck_s, "unwritten": self._worker.finisher.unwritten_ids()}
        if logger.lost:
            report["log_lost"] = logger.lost
        try:
            self._worker.require_ready()
        except NotReady as error:
            report["fault"] = str(error)
        self._channel.send(**report, counted=self._worker.report())
        return _REPORT_EVERY_S

    def finish(self) -> bool:
        self.poll()
        return True
