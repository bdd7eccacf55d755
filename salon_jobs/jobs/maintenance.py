"""Runs, beside the worker's claims, what must go on by itself: rescue, a look at the front of the queue, pruning."""

from __future__ import annotations

import logging
import threading
import time

from django.db import DatabaseError, InterfaceError, connections

from salon_jobs import sql
from salon_jobs.conf import settings as conf
from salon_jobs.core import log_events, metrics
from salon_jobs.core.log_events import log_event
from salon_jobs.core.metrics import Sample
from salon_jobs.jobs.depths import record_depths
from salon_jobs.jobs.pruner import Pruner
from salon_jobs.jobs.queue_front import QueueFront, count_rest, look_at_queue
from salon_jobs.jobs.rescuer import Rescuer
from salon_jobs.jobs.statistics import ended_runs
from salon_jobs.runtime.connections import tell_lost, tidy_connections

_EVERY_S = 1.0
_LOOK_EVERY_S = 10.0
_PRUNE_EVERY_S = 60.0
_RESCUE_AFTER_BEATS = 2


def forget_superseded() -> None:
    """Forget which runs were superseded when those have ended. Idempotent. Raises database errors."""
    with connections[conf.database].cursor() as cursor:
        cursor.execute(sql.load("forget_superseded"))


class Maintenance:
    """Is a thread that rescues every second, looks at the queue every ten and prunes every minute.

    It rescues from the second heartbeat on: after an outage that it did not see, the others get the time to beat.
    """

    def __init__(self) -> None:
        self._rescuer = Rescuer()
        self._pruner = Pruner()
        self._prune_at = float("-inf")
        self._stop = threading.Event()
        self._looked = float("-inf")
        self._thread = threading.Thread(target=self._run, name="salon-jobs-maintenance", daemon=True)
        self._swept = time.monotonic()
        self._rest: dict[tuple[str, str], int] = {}
        self.front = QueueFront()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; returns when it ended. Idempotent."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def require_ready(self) -> None:
        """Raise NotReady when the last sweep, or the oldest due job of a queue, is older than the settings allow."""
        thresholds = conf.readiness
        thresholds.require("last_sweep", self._swept_s_ago, "no sweep for dead processes has succeeded")
        for queue, late_s in self.front.late_s.items():
            thresholds.require_due(queue, late_s)

    def samples(self) -> list[Sample]:
        """Return what metrics show: the queues, as of the last look, and the age of the last sweep."""
        return [
            Sample(metrics.LOOP_AGE, self._swept_s_ago, ("sweep",)),
            *self.front.samples(),
            *(Sample(metrics.QUEUE_DEPTH, count, labels) for labels, count in self._rest.items()),
        ]

    @property
    def _swept_s_ago(self) -> float:
        return time.monotonic() - self._swept

    def _run(self) -> None:
        rescue_from = time.monotonic() + _RESCUE_AFTER_BEATS * conf.heartbeat_interval.total_seconds()
        while not self._stop.wait(_EVERY_S):
            try:
                if time.monotonic() >= rescue_from:
                    self._rescuer.run_once()
                self._swept = time.monotonic()
                if time.monotonic() - self._looked >= _LOOK_EVERY_S:
                    self._look()
                    forget_superseded()
                    record_depths()
                ended_runs.flush_when_due()
                if time.monotonic() >= self._prune_at:
                    self._prune()
            except (DatabaseError, InterfaceError) as error:
                tell_lost(error, loop="maintenance")
            tidy_connections()
        self._end()
        connections.close_all()

    def _end(self) -> None:
        try:
            ended_runs.flush()
        except (DatabaseError, InterfaceError) as error:
            log_event(logging.WARNING, log_events.DATABASE_LOST, loop="statistics", error=str(error).strip())

    def _prune(self) -> None:
        more = self._pruner.run_once().more
        self._prune_at = time.monotonic() + (0.0 if more else _PRUNE_EVERY_S)

    def _look(self) -> None:
        front, self._rest = look_at_queue(), count_rest()
        self._looked = time.monotonic()
        if front.unknown_tasks and front.unknown_tasks != self.front.unknown_tasks:
            log_event(
                logging.WARNING, log_events.TASKS_UNKNOWN, code="JOB.UNKNOWN_TASK", tasks=list(front.unknown_tasks)
            )
        log_event(logging.INFO, log_events.QUEUE_LAG, lag_s=round(front.lag_s, 3))
        self.front = front
