"""Joins a worker with its listener, its maintenance and, when asked, a scheduler: what ``runworker`` runs."""

from __future__ import annotations

import threading
import time

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import NotReady
from salon_jobs.jobs import wake
from salon_jobs.jobs.maintenance import Maintenance
from salon_jobs.jobs.worker import Worker, WorkerOptions
from salon_jobs.runtime.connections import refuse_small_pool
from salon_jobs.runtime.listener import Listener
from salon_jobs.runtime.service import Loop

_STALE_LOOK_S = 30.0
# Claims, heartbeat, maintenance, scheduler, the listener's ping, and two questions about health at a time.
_OTHER_THREADS = 7


class WorkerLoop:
    """Runs a worker and what belongs to it; ``beside`` is a loop run in a thread of its own (the scheduler)."""

    def __init__(self, process_id: int, options: WorkerOptions, *, beside: Loop | None = None) -> None:
        refuse_small_pool(options.concurrency + _OTHER_THREADS)
        self._worker = Worker(process_id, options)
        self._listener = Listener(wake.CHANNEL, self._worker.wake)
        self._maintenance = Maintenance()
        self._beside = beside
        self._began = time.monotonic()

    def run(self) -> bool:
        """Work until stopped; True when every job ended or was given back in time."""
        self._listener.start()
        self._maintenance.start()
        thread = None
        if self._beside is not None:
            thread = threading.Thread(target=self._beside.run, name="salon-jobs-scheduler", daemon=True)
            thread.start()
        try:
            return self._worker.run()
        finally:
            if self._beside is not None and thread is not None:
                self._beside.stop()
                thread.join()
            self._maintenance.stop()
            self._listener.stop()

    def stop(self) -> None:
        """Stop gracefully; a second call forces it."""
        if self._beside is not None:
            self._beside.stop()
        self._worker.stop()

    def facts(self) -> dict[str, object]:
        """Return queue lag, unknown tasks and whether wake-ups are heard. Raises NotReady when claims went stale."""
        age = min(self._worker.looked_s_ago, time.monotonic() - self._began)
        if age > max(_STALE_LOOK_S, 3 * conf.poll_interval.total_seconds()) and self._worker.has_room:
            raise NotReady(f"no claim was answered for {age:.0f} s")
        if ended := self._worker.ended_runners:
            raise NotReady(f"{ended} threads that run jobs have ended; restart the process")
        front = self._maintenance.front
        silent_s = self._listener.silent_for_s()
        return {
            "lag_s": round(front.lag_s, 3),
            "unknown_tasks": list(front.unknown_tasks),
            "listening": self._listener.listening,
            "listener_silent_s": None if silent_s == float("inf") else round(silent_s, 1),
            **(self._beside.facts() if self._beside is not None else {}),
        }
