"""Fires cron entries: each tick once, however many schedulers run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from django.db import DatabaseError, InterfaceError, OperationalError, connections

from salon_jobs.conf import settings as conf
from salon_jobs.core import log_events
from salon_jobs.core.errors import CronInvalid, NotReady
from salon_jobs.core.log_events import log_event
from salon_jobs.core.records import NewJob
from salon_jobs.jobs import enqueue, registry
from salon_jobs.runtime.connections import tidy_connections
from salon_jobs.schedule import store
from salon_jobs.schedule.entries import CronEntry, cron_entries, due_ticks

_LONGEST_SLEEP_S = 5.0
_OUTAGE_S = 1.0
_STALE_S = 30.0


class Scheduler:
    """Looks at the database's clock, fires what is due and sleeps until the next tick."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._learnt = False
        self._looked = time.monotonic()
        self._complained: dict[str, datetime] = {}

    def run(self) -> bool:
        """Fire until stopped; always ends cleanly."""
        while not self._stop.is_set():
            try:
                sleep_s = self.run_once()
                self._looked = time.monotonic()
            except (DatabaseError, InterfaceError) as error:
                log_event(logging.WARNING, log_events.DATABASE_LOST, loop="scheduler", error=str(error).strip())
                connections[conf.database].errors_occurred = True
                sleep_s = _OUTAGE_S
            tidy_connections()
            self._stop.wait(sleep_s)
        connections.close_all()
        return True

    def stop(self) -> None:
        """Ask for the end; a tick being fired is finished first. Idempotent."""
        self._stop.set()

    def facts(self) -> dict[str, object]:
        """Return what readiness shows. Raises NotReady when the loop has not looked for a while."""
        age = time.monotonic() - self._looked
        if age > _STALE_S:
            raise NotReady(f"the scheduler has not looked for {age:.0f} s")
        return {"cron_entries": len(cron_entries.all()), "scheduler_looked_s_ago": round(age, 1)}

    def run_once(self) -> float:
        """Fire everything due once; returns how long to sleep, in seconds. Raises database errors."""
        entries = cron_entries.all()
        if not self._learnt:
            store.learn(entry.name for entry in entries)
            self._learnt = True
        now, states = store.states()
        next_at = now + timedelta(seconds=_LONGEST_SLEEP_S)
        for entry in entries:
            if self._stop.is_set() or entry.name not in states:
                continue
            due = due_ticks(entry, states[entry.name].after, now)
            if due.missed:
                if not due.ticks:
                    store.skip(entry.name, due.settled_until)
                log_event(logging.WARNING, log_events.CRON_MISSED, entry=entry.name, missed=due.missed)
            self._fire_in_order(entry, due.ticks)
            next_at = min(next_at, entry.expression.next_after(now))
        return max(0.0, (next_at - now).total_seconds())

    def run_at(self, instant: datetime) -> int:
        """Fire the entries that have a tick at exactly this instant; returns how many jobs that added.

        Raises CronInvalid in the end when some could not be fired; the others are.
        """
        store.learn(entry.name for entry in cron_entries.all())
        due = [
            entry
            for entry in cron_entries.all()
            if entry.expression.next_after(instant - timedelta(microseconds=1)) == instant
        ]
        results = {entry.name: self._try_to_fire(entry, instant, advance=False) for entry in due}
        if failed := [name for name, result in results.items() if result is None]:
            raise CronInvalid(f"entries that could not be fired for {instant.isoformat()}: {', '.join(failed)}")
        return sum(map(bool, results.values()))

    def _fire_in_order(self, entry: CronEntry, ticks: Sequence[datetime]) -> None:
        """Fire an entry's ticks; one that fails holds back the later ones until it works or is too old to backfill."""
        for tick in ticks:
            if self._try_to_fire(entry, tick) is None:
                return

    def _try_to_fire(self, entry: CronEntry, tick: datetime, *, advance: bool = True) -> bool | None:
        """Fire one tick; None when it failed, which is logged once a tick. Raises when the database is lost."""
        try:
            job = self._job_of(entry, tick)
        except Exception as error:  # its own query may have lost the database; the other entries find out themselves
            self._complain(entry, tick, error)
            return None
        try:
            return self._fire(entry, job, tick, advance=advance)
        except (OperationalError, InterfaceError):
            raise
        except Exception as error:
            self._complain(entry, tick, error)
            return None

    def _complain(self, entry: CronEntry, tick: datetime, error: Exception) -> None:
        if self._complained.get(entry.name) != tick:
            self._complained[entry.name] = tick
            log_event(logging.ERROR, log_events.CRON_FAILED, exc_info=error, entry=entry.name, tick=tick)

    def _job_of(self, entry: CronEntry, tick: datetime) -> NewJob:
        task = registry.get_task(entry.task_name)
        arguments = task.payload.bind((), entry.payload_at(tick))
        return replace(task.new_job(arguments, task.options), tick=tick)

    def _fire(self, entry: CronEntry, job: NewJob, tick: datetime, *, advance: bool) -> bool:
        handle = store.fire(entry.name, tick, partial(enqueue.add, job), advance=advance)
        if handle is not None:
            log_event(
                logging.INFO, log_events.CRON_FIRED, entry=entry.name, tick=tick, job_id=handle.id,
                task_name=entry.task_name, result=handle.result.value,
            )  # fmt: skip
        return handle is not None
