"""Why queued jobs do not run yet, for operators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils import timezone

from salon_jobs.conf import settings as conf
from salon_jobs.core.records import JobState
from salon_jobs.core.units import duration, paused_text, with_noun
from salon_jobs.db import statements
from salon_jobs.jobs import registry
from salon_jobs.jobs.limits import Limits, count_by_scope, load_limits, scopes_of
from salon_jobs.models import Job, Process


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What decides whether jobs start: limits with their use, and the queues that live workers serve (None: all)."""

    limits: Limits
    running: Mapping[str, int]
    served: Sequence[Sequence[str] | None]
    known_tasks: frozenset[str]

    def reasons(self, job: Any, now: datetime) -> list[str]:
        """Return each reason why the queued job does not start, in words; none when it only waits for its turn."""
        found: list[str] = []
        if ahead := due_in(job, now):
            found.append(ahead)
        if job.task not in self.known_tasks:
            found.append(f"no task {job.task!r} is declared here")
        if not self.served:
            found.append("no worker is running")
        elif not any(serves(queues, job.queue) for queues in self.served):
            found.append(f"no worker serves queue {job.queue!r}")
        for scope in scopes_of(job.queue, job.task, job.store_id, job.concurrency_key):
            found += self._limited(scope)
        return found

    def _limited(self, scope: str) -> Iterable[str]:
        limit, name = self.limits[scope], scope.replace(":", " ", 1)
        if limit.paused:
            at = limit.paused_at and timezone.localtime(limit.paused_at)
            yield f"{name} is {paused_text(limit.paused_by, at)}"
        elif limit.max_concurrency is not None:
            count = self.running[scope]
            if count >= limit.max_concurrency:
                yield f"{name}: {with_noun(count, 'job')} running, limit {limit.max_concurrency:,}"
        elif limit.rate is not None:
            yield f"{name} is limited to {with_noun(1, 'job') if limit.rate == 1 else f'{limit.rate:g} jobs'} a second"


def serves(queues: Sequence[str] | None, queue: str) -> bool:
    """Return whether a process with these queues in its row serves one: all, the named, or all but those after "!"."""
    if queues is None or queue in queues:
        return True
    return any(name.startswith("!") for name in queues) and f"!{queue}" not in queues


def served_in_words(queues: Sequence[str] | None) -> str:
    """Return which queues a process with these in its row serves: "all", "mail, night" or "all but dawn"."""
    if not queues:
        return "all"
    excluded = [name[1:] for name in queues if name.startswith("!")]
    return f"all but {', '.join(excluded)}" if excluded else ", ".join(queues)


def due_in(job: Any, now: datetime) -> str:
    """Return when a queued job that is not due yet becomes due, in words, or ""."""
    ahead_s = (job.run_at - now).total_seconds()
    return f"{'retry' if job.attempts else 'due'} in {duration(ahead_s)}" if ahead_s > 0 else ""


def surroundings(*, using: str, now: datetime) -> Surroundings:
    """Load what decides whether jobs start, in two or three queries. Role: operator, worker."""
    limits = load_limits(using=using)
    workers = Process.objects.using(using).filter(kind="worker").order_by("-heartbeat_at")[:1000]
    rows: list[tuple[Any, datetime]] = list(workers.values_list("queues", "heartbeat_at"))
    return Surroundings(
        limits,
        count_by_scope(statements.rows("running_counts", using=using)) if limits else {},
        [queues for queues, beat in rows if now - beat < conf.process_silent_after],
        frozenset(registry.task_names()),
    )


def waiting_reasons(jobs: Iterable[Job], *, using: str, now: datetime) -> dict[int, str]:
    """Return for each queued job why it does not run yet; "" when nothing but its turn is missing.

    Three queries at most, however many jobs. Role: operator, worker.
    """
    queued = [job for job in jobs if job.state == str(JobState.QUEUED)]
    if not queued:
        return {}
    around = surroundings(using=using, now=now)
    return {job.pk: "; ".join(around.reasons(job, now)) for job in queued}
