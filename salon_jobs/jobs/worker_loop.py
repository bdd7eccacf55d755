"""Joins a worker with its listener: what one process that runs jobs does."""

from __future__ import annotations

import time
from typing import Any

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import NotReady
from salon_jobs.jobs import wake
from salon_jobs.jobs.statistics import ended_runs
from salon_jobs.jobs.worker import Worker, WorkerOptions
from salon_jobs.runtime.connections import refuse_small_pool
from salon_jobs.runtime.listener import Listener
from salon_jobs.runtime.run_board import RunBoard

# Claims, the successes that are written in batches, and the listener's ping.
OTHER_THREADS = 3


class WorkerLoop:
    """Runs a worker and what belongs to it; ``board`` is where a supervisor sees what it runs."""

    def __init__(self, process_id: int, options: WorkerOptions, *, board: RunBoard | None = None) -> None:
        refuse_small_pool(options.concurrency + OTHER_THREADS)
        self._worker = Worker(process_id, options, board=board)
        self._listener = Listener(wake.CHANNEL, self._worker.wake)
        self._began = time.monotonic()
        self._told_claimed = 0

    def run(self) -> bool:
        """Work until stopped; True when every job ended or was given back in time."""
        self._listener.start()
        try:
            return self._worker.run()
        finally:
            self._listener.stop()

    def stop(self) -> None:
        """Stop gracefully; a second call forces it."""
        self._worker.stop()

    def report(self) -> dict[str, Any]:
        """Return what was counted since the last report, for ``RunTotals.add``; one thread's to call."""
        claimed, self._told_claimed = self._worker.claimed - self._told_claimed, self._worker.claimed
        return {"claimed": claimed, "rows": ended_runs.take_report()}

    def facts(self) -> dict[str, Any]:
        """Return the age of the last claim and whether wake-ups are heard."""
        silent_s = self._listener.silent_for_s()
        return {
            "looked_s_ago": round(self._since_begun(self._worker.looked_s_ago), 1),
            "listening": self._listener.listening,
            "listener_silent_s": None if silent_s == float("inf") else round(silent_s, 1),
        }

    def require_ready(self) -> None:
        """Raise NotReady when it drains, when claims went stale, threads ended, or nothing is heard any more."""
        if self._worker.draining:
            raise NotReady("too many runs timed out: it ends, and another one takes its place")
        if self._worker.has_room:
            looked_s_ago = self._since_begun(self._worker.looked_s_ago)
            conf.readiness.require("loop_stale", looked_s_ago, "no claim was answered")
        conf.readiness.require("loop_stale", self._worker.unwritten_s, "the end of a run could not be written")
        if ended := self._worker.ended_runners:
            raise NotReady(f"{ended} threads that run jobs have ended; restart the process")
        if self._listener.listening != "off":
            heard_s_ago = self._since_begun(self._listener.silent_for_s())
            conf.readiness.require("listener_silent", heard_s_ago, "no wake-up could be heard")

    def _since_begun(self, age_s: float) -> float:
        """Return an age, of what never was that of this loop."""
        return min(age_s, time.monotonic() - self._began)
