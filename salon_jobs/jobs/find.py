"""Finds jobs for people: each condition by an index, where the table has one that enqueues and claims can afford."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from django.db.models import Q, QuerySet

from salon_jobs.core.records import JobState
from salon_jobs.models import Job
from salon_jobs.models.bisection import MARGIN, first_id_at

ENDED: Final = Q(state__in=[JobState.FAILED, JobState.CANCELLED, JobState.SUCCEEDED])
_LIVE: Final = [JobState.QUEUED, JobState.RUNNING]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCriteria:
    """Names jobs by all of these; None: any. ``since`` and ``until`` are when they were enqueued."""

    states: tuple[str, ...] = ()
    task: str | None = None
    queue: str | None = None
    store_id: UUID | None = None
    job_key: str | None = None
    error_class: str | None = None
    fingerprint: int | None = None
    since: datetime | None = None
    until: datetime | None = None


def find_jobs(criteria: JobCriteria, *, using: str) -> QuerySet[Job]:
    """Return the jobs that match, the newest first. An error's class and a fingerprint name failed jobs alone."""
    found = Job.objects.using(using).order_by("-pk")
    if criteria.states:
        found = found.filter(state__in=criteria.states)
    for name in ("task", "queue"):
        if (value := getattr(criteria, name)) is not None:
            found = found.filter(in_every_state(Q(**{name: value})))
    if criteria.store_id is not None:
        found = found.filter(store_id=criteria.store_id)
    if criteria.job_key is not None:
        found = found.filter(with_key(criteria.job_key))
    for name in ("error_class", "fingerprint"):
        if (value := getattr(criteria, name)) is not None:
            found = found.filter(state=JobState.FAILED, **{name: value})
    return enqueued(found, since=criteria.since, until=criteria.until)


def enqueued(jobs: QuerySet[Job], *, since: datetime | None = None, until: datetime | None = None) -> QuerySet[Job]:
    """Return those that were enqueued in a time, from ``since`` on, before ``until``: by their ids."""
    everything = Job.objects.using(jobs.db)
    if since is not None:
        jobs = jobs.filter(pk__gte=first_id_at(since - MARGIN, everything), created_at__gte=since)
    if until is not None:
        jobs = jobs.filter(pk__lt=first_id_at(until + MARGIN, everything), created_at__lt=until)
    return jobs


def in_every_state(condition: Q) -> Q:
    """Spell a condition out for queued, running and ended jobs, so that each part can use its own partial index.

    An index over all states would be written by every enqueue and every claim, for a page that few people open.
    """
    return (Q(state=JobState.QUEUED) & condition) | (Q(state=JobState.RUNNING) & condition) | (ENDED & condition)


def with_key(job_key: str) -> Q:
    """Match a key: by the index of the live ones, and by that of the ended ones."""
    return Q(state__in=_LIVE, job_key=job_key) | (ENDED & Q(job_key=job_key))
