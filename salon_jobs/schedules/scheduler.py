"""Scheduler of cron entries and schedules. A tick fires at most once, with its job, with any number of schedulers."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from django.db import InterfaceError, OperationalError
from django.db.models import Q, Value
from django.db.models.functions import Greatest, Now
from django.utils.translation import gettext

from salon_jobs.conf import settings as conf
from salon_jobs.core import events, metrics
from salon_jobs.core.arguments import check_text, checked_names
from salon_jobs.core.error_report import message_of
from salon_jobs.core.errors import CronInvalid, SalonJobsError, did_you_mean, require_within
from salon_jobs.core.events import log_event
from salon_jobs.core.metrics import Sample
from salon_jobs.core.records import ActionResult
from salon_jobs.core.text import short_repr
from salon_jobs.db import statements
from salon_jobs.db.connections import alias_of
from salon_jobs.db.read_only import failed_read_only
from salon_jobs.db.statements import is_lock_conflict, short_lock_timeout
from salon_jobs.jobs import enqueue, registry
from salon_jobs.jobs.options import NewJob
from salon_jobs.jobs.results import JobHandle
from salon_jobs.models import CronEntryState, CronTick, Job
from salon_jobs.process.heartbeat import EmbeddedRow, Heartbeat
from salon_jobs.process.loop import Loop
from salon_jobs.schedules.cron import CronExpression
from salon_jobs.schedules.due import StoredSchedules
from salon_jobs.schedules.entries import TICKS_AT_ONCE, CronEntry, cron_entries, due_ticks

_LONGEST_SLEEP_S = 5.0
_LATE_S = 120.0
# As in ``due_schedules``.
_SKIPPED: Final = "skipped: the last one is not done"


class Scheduler(Loop):
    """Loop that reads the database's clock, fires due ticks and sleeps until the next one."""

    def __init__(self, *, using: str) -> None:
        super().__init__("scheduler", using=using)
        # By entry and event, so that each is logged once a tick.
        self._last_reported: dict[tuple[str, str], datetime] = {}
        # The database's time at the last poll, and each entry as it was in effect then, with the instant up to which
        # its ticks had fired or were given up.
        self._now: datetime | None = None
        self._now_at = 0.0
        self._handled: dict[str, tuple[CronEntry, datetime]] = {}
        self._lateness: dict[str, float] = {}
        self._ticks: Counter[tuple[str, str]] = Counter()
        self._stored = StoredSchedules(using=using)

    def facts(self) -> dict[str, object]:
        """Return facts for readiness. Raises NotReady if the loop is stale, or a due tick is long overdue."""
        age = self.polled_s_ago
        conf.require_alive(age, "the scheduler has not polled")
        for entry, overdue_s in self._overdue().items():
            require_within(_LATE_S, overdue_s, f"cron entry {entry!r} has had a due tick that is not fired")
        return {"cron_entries": len(cron_entries.all()), "scheduler_polled_s_ago": round(age, 1)}

    def samples(self) -> list[Sample]:
        return [
            Sample(metrics.LOOP_AGE, self.polled_s_ago, ("scheduler",)),
            *(Sample(metrics.CRON_LAST_TICK, at.timestamp(), (name,)) for name, (_, at) in list(self._handled.items())),
            *(Sample(metrics.CRON_OVERDUE, overdue_s, (name,)) for name, overdue_s in self._overdue().items()),
            *(Sample(metrics.CRON_LATENESS, late_s, (name,)) for name, late_s in list(self._lateness.items())),
            *(
                Sample(metrics.CRON_TICKS, self._ticks[entry.name, outcome], (entry.name, outcome))
                for entry in cron_entries.all()
                for outcome in ("fired", "missed", "failed", *(() if entry.overlap else ("skipped",)))
            ),
            *self._stored.samples(),
        ]

    def _overdue(self) -> dict[str, float]:
        """Return how many seconds each entry's oldest due tick is overdue; grows while the loop hangs."""
        if self._now is None:
            return {}
        now = self._now + timedelta(seconds=time.monotonic() - self._now_at)
        return {
            name: max(0.0, (now - entry.expression.next_after(handled)).total_seconds())
            for name, (entry, handled) in list(self._handled.items())
        }

    def poll(self) -> float:
        """Fire everything that is due; return the seconds until the next tick."""
        now, self._handled = self._read_entries()
        self._now, self._now_at = now, time.monotonic()
        next_at = now + timedelta(seconds=_LONGEST_SLEEP_S)
        for entry, after in list(self._handled.values()):
            if self.stopping.is_set():
                break
            due = due_ticks(entry, after, now)
            if due.missed:
                # Before the others fire: the failure of one at each poll must not report these again.
                first = entry.expression.next_after(after)
                try:
                    record_missed(entry.name, first, due.missed, until=due.after, using=self.using)
                except OperationalError as error:
                    self._report_held_up(entry, first, error)
                    continue  # its later ticks would leave these behind
                self._handled[entry.name] = (entry, due.after)
                self._ticks[entry.name, "missed"] += due.missed
                log_event(logging.WARNING, events.CRON_MISSED, entry=entry.name, missed=due.missed, first=first)
            for tick in due.ticks:
                fired = self._try_to_fire(entry, tick)
                if fired is None:  # it delays the later ones until it succeeds or is too old to backfill
                    break
                self._handled[entry.name] = (entry, tick)
                if fired:
                    self._lateness[entry.name] = max(0.0, (now - tick).total_seconds())
            next_at = min(next_at, entry.expression.next_after(now))
        return min(max(0.0, (next_at - now).total_seconds()), self._stored.poll())

    def run_at(self, instant: datetime) -> int:
        """Fire the entries with a tick at exactly this instant; return how many jobs that added.

        Raises CronInvalid at the end if some could not be fired; the others were.
        """
        due = [entry for entry, _ in self._read_entries()[1].values() if entry.is_due_at(instant)]
        results = {entry.name: self._try_to_fire(entry, instant, advance=False) for entry in due}
        if failed := [name for name, result in results.items() if result is None]:
            raise CronInvalid(f"entries that could not be fired for {instant.isoformat()}: {', '.join(failed)}")
        return sum(map(bool, results.values()))

    def _read_entries(self) -> tuple[datetime, dict[str, tuple[CronEntry, datetime]]]:
        """Return the database's time and, for each declared entry, its form in effect and the end of its done ticks.

        Ticks from before an entry was first seen are ignored. An entry with an invalid line is left out, and logged.
        """
        declared = cron_entries.all()
        rows = statements.rows("cron_states", using=self.using)
        if new := {entry.name for entry in declared}.difference(row[1] for row in rows):
            # Also after a failover that lost their rows: an earlier registration is never relied on.
            try:
                register(sorted(new), using=self.using)
            except OperationalError as error:  # another transaction has inserted one of them and not committed
                for entry in (each for each in declared if each.name in new):
                    self._report_held_up(entry, entry.expression.next_after(rows[0][0]), error)
            rows = statements.rows("cron_states", using=self.using)
        states = {name: (handled, line) for _, name, handled, line in rows}
        entries: dict[str, tuple[CronEntry, datetime]] = {}
        for entry in (each for each in declared if each.name in states):
            handled, line = states[entry.name]
            try:
                entries[entry.name] = (entry.overridden(line), handled)
            except CronInvalid as error:
                self._report_failure(entry, handled, error)
        return rows[0][0], entries

    def _try_to_fire(self, entry: CronEntry, tick: datetime, *, advance: bool = True) -> bool | None:
        """Fire or skip one tick; return whether this added its job, or None if it failed, logged once per tick.

        It fails, too, while another transaction holds the job's key. Raises the error if the database is lost.
        """
        try:
            job = job_of(entry, tick)
        except Exception as error:  # if its own query lost the database, the other entries will notice
            self._report_failure(entry, tick, error)
            return None
        try:
            add_job = partial(enqueue.add, job, using=self.using)
            line, no_overlap_of = entry.override, "" if entry.overlap else entry.task_name
            handle = fire(
                entry.name, tick, add_job, line=line, no_overlap_of=no_overlap_of, advance=advance, using=self.using
            )
        except Exception as error:
            if is_lock_conflict(error):
                self._report_held_up(entry, tick, error)
                return None
            if isinstance(error, (OperationalError, InterfaceError)) or failed_read_only(error):
                raise
            self._report_failure(entry, tick, error)
            return None
        if handle is None:
            return False
        if isinstance(handle, str):
            self._ticks[entry.name, "skipped"] += 1
            log_event(logging.INFO, events.CRON_SKIPPED, entry=entry.name, tick=tick, outcome=handle)
            return False
        self._ticks[entry.name, "fired"] += 1
        added: dict[str, Any] = {"job_id": handle.id, "task_name": entry.task_name, "result": handle.action.value}
        log_event(logging.INFO, events.CRON_FIRED, entry=entry.name, tick=tick, **added)
        return True

    def _report_failure(self, entry: CronEntry, tick: datetime, error: Exception) -> None:
        self._ticks[entry.name, "failed"] += 1
        self._report(logging.ERROR, events.CRON_FAILED, entry, tick, exc_info=error)

    def _report_held_up(self, entry: CronEntry, tick: datetime, error: Exception) -> None:
        """Log that another transaction holds the tick up. Raises any other error."""
        if not is_lock_conflict(error):
            raise error
        self._report(logging.WARNING, events.CRON_HELD_UP, entry, tick, error=str(error).partition("\n")[0])

    def _report(self, level: int, event: str, entry: CronEntry, tick: datetime, **fields: Any) -> None:
        if self._last_reported.get((entry.name, event)) != tick:
            self._last_reported[entry.name, event] = tick
            log_event(level, event, entry=entry.name, tick=tick, **fields)


class EmbeddedScheduler(Scheduler):
    """Scheduler of ``runworker --with-scheduler``, for its own thread, with a process row of its own."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        super().__init__(using=heartbeat.using)
        self._row = EmbeddedRow("scheduler", heartbeat)

    def poll(self) -> float:
        """Work as a scheduler does, which the others see by the row."""
        self._row.insert()
        return super().poll()

    def finish(self) -> bool:
        """Finish as a scheduler does, and delete the process row."""
        try:
            return super().finish()
        finally:
            self._row.delete(self.outage)


def job_of(entry: CronEntry, tick: datetime) -> NewJob:
    """Return the job that a tick enqueues. Raises the payload function's errors, and PayloadInvalid."""
    job = registry.get_declaration(entry.task_name).job_of((), entry.payload_at(tick))
    return replace(job, tick=tick, store_id=None)


def run_cron_entry(name: str, *, using: str | None = None) -> JobHandle:
    """Enqueue the job of a cron entry at once, as if it were due now. Role: web, worker.

    The payload is built for this instant, which is also the job's tick; the entry's own ticks are not affected. The job
    is added in your transaction, if one is open. ``using`` defaults to the alias of the job tables. Raises CronInvalid
    if this process does not declare the entry, or if its payload function raises.
    """
    entries = {entry.name: entry for entry in cron_entries.all()}
    if isinstance(name, str) and (other := cron_entries.left_out.get(name)) is not None:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise CronInvalid(f"cron entry {name!r} starts nothing here: its task is one of {other}; see TASKS")
    if not isinstance(name, str) or name not in entries:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise CronInvalid(f"no cron entry {short_repr(name)} is declared in this process{did_you_mean(name, entries)}")
    try:
        job = job_of(entries[name], datetime.now(UTC))
    except SalonJobsError:
        raise
    except Exception as error:  # the project's own function
        cause = f"{type(error).__name__}: {message_of(error)}"
        raise CronInvalid(f"the payload function of cron entry {name!r} raised {cause}") from error
    return enqueue.run_at_once_in_tests(enqueue.add(job, using=alias_of(using)))


def pause_cron_entries(names: Iterable[str], *, by: str = "", using: str | None = None) -> list[ActionResult[str]]:
    """Pause cron entries by name, until they are resumed: no tick fires, whatever the code declares.

    Schedulers follow at their next poll, within seconds. Role: operator, worker. ``by`` is recorded.
    """
    check_text("by", by, 255, least=0)
    return _change_entries(
        names, Q(paused_at=None), gettext("it is paused already"), using, paused_at=Now(), paused_by=by
    )


def resume_cron_entries(names: Iterable[str], *, using: str | None = None) -> list[ActionResult[str]]:
    """Resume paused cron entries; their ticks of the pause are not made up for. Role: operator, worker."""
    values: dict[str, Any] = {"paused_at": None, "paused_by": "", "last_tick_at": Greatest("last_tick_at", Now())}
    return _change_entries(names, ~Q(paused_at=None), gettext("it is not paused"), using, **values)


def override_cron_entries(
    names: Iterable[str], line: str | None, *, by: str = "", using: str | None = None
) -> list[ActionResult[str]]:
    """Have cron entries due by ``line`` instead of the line in code, whatever that is; None restores the latter.

    ``line`` is read in the time zone of each entry. Schedulers follow at their next poll, within seconds; ticks of
    either line from before the change no longer fire. Role: operator, worker. ``by`` is recorded. Raises CronInvalid
    naming the field of the line.
    """
    check_text("by", by, 255, least=0)
    given = "" if line is None else CronExpression(line).line
    check_text("line", given, 255, least=0)
    values: dict[str, Any] = {"overridden_at": Now(), "overridden_by": by}
    values = {"line": given, **(values if given else {"overridden_at": None, "overridden_by": ""})}
    otherwise = gettext("that is its line") if given else gettext("its line is the one in code")
    return _change_entries(
        names, ~Q(line=given), otherwise, using, **values, last_tick_at=Greatest("last_tick_at", Now())
    )


def _change_entries(
    names: Iterable[str], which: Q, otherwise: str, using: str | None, **values: Any
) -> list[ActionResult[str]]:
    results: list[ActionResult[str]] = []
    for name in checked_names("names", names, 255):
        entries = CronEntryState.objects.using(alias_of(using)).filter(pk=name)
        changed = bool(entries.filter(which).update(**values))
        why = "" if changed else otherwise if entries.exists() else gettext("no scheduler has seen such an entry")
        results.append(ActionResult(name, changed, why))
    return results


def register(names: Iterable[str], *, using: str) -> None:
    """Record new entries as first seen now, by the database's clock; existing ones do not change. Can be held up."""
    rows = [CronEntryState(name=name) for name in names]
    with short_lock_timeout(using=using):
        CronEntryState.objects.using(using).bulk_create(rows, ignore_conflicts=True)


def fire(
    entry: str,
    tick: datetime,
    add_job: Callable[[], JobHandle],
    *,
    line: str = "",
    no_overlap_of: str = "",
    advance: bool = True,
    using: str,
) -> JobHandle | str | None:
    """Insert the tick and add its job in one transaction; return None if another scheduler was first.

    If an entry may not overlap, ``no_overlap_of`` is its task: while the entry's last job is not done, the tick is
    recorded with its outcome, which is returned, and adds no job.

    ``advance`` moves the entry's last tick, and only forwards: nothing fires again if a clock steps back, and nothing
    fires if the entry is paused or ``line`` no longer overrides its own. Raises an error for which ``is_lock_conflict``
    is true if another transaction has enqueued under the job's key.
    """
    with short_lock_timeout(using=using):
        parameters = {"entry": entry, "tick_at": tick, "line": line, "advance": advance}
        fired = statements.rows("cron_tick", parameters, using=using)
        if not fired:
            return None
        if no_overlap_of and advance:
            [(is_unfinished,)] = statements.rows(
                "cron_unfinished", {"entry": entry, "task": no_overlap_of}, using=using
            )
            if is_unfinished:
                CronTick.objects.using(using).filter(pk=fired[0][0]).update(outcome=_SKIPPED)
                skip(entry, tick, using=using)
                return _SKIPPED
        handle = add_job()
        CronTick.objects.using(using).filter(pk=fired[0][0]).update(job_id=handle.id)
        if advance:
            skip(entry, tick, using=using)
        return handle


def record_missed(entry: str, first: datetime, count: int, *, until: datetime, using: str) -> None:
    """Record ticks that are too late to fire, from the ``first`` on, and mark all up to ``until`` as done.

    Raises an error for which ``is_lock_conflict`` is true, with nothing recorded, if another transaction holds it.
    """
    more = " or more" if count == TICKS_AT_ONCE else ""
    outcome = "missed: too late" if count == 1 else f"missed: too late, and {count - 1:,}{more} after it"
    with short_lock_timeout(using=using):
        CronTick.objects.using(using).bulk_create(
            [CronTick(entry=entry, tick_at=first, outcome=outcome)], ignore_conflicts=True
        )
        skip(entry, until, using=using)


def skip(entry: str, until: datetime, *, using: str) -> None:
    """Mark all ticks of the entry up to ``until`` as done, fired or not; never moves backwards."""
    entries = CronEntryState.objects.using(using).filter(pk=entry)
    entries.update(last_tick_at=Greatest("last_tick_at", Value(until)))


def tick_of(job: Job, *, using: str) -> CronTick | None:
    """Return the tick that added this job or found it waiting, or None if there is none or it was pruned."""
    if job.tick is None:
        return None
    # Filter by name too, since the index begins with it.
    entries = list(CronEntryState.objects.using(using).values_list("name", flat=True))
    return CronTick.objects.using(using).filter(entry__in=entries, tick_at=job.tick, job_id=job.pk).first()
