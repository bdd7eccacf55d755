"""Read models of jobs, for the admin's lists and pages and for ``salon_jobs list`` and ``show``, which lay them out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db.models import Model, Q, QuerySet
from django.utils.translation import gettext, gettext_noop, ngettext

from salon_jobs.core.errors import ProcessDied
from salon_jobs.core.records import JobState, StoreId
from salon_jobs.db import clock
from salon_jobs.jobs import registry
from salon_jobs.jobs.flow_summary import FlowSummary, summarize_flow
from salon_jobs.jobs.ordered import PlaceInOrder, place_in_order
from salon_jobs.jobs.search import NextAttempt, progress_of, retries_ahead
from salon_jobs.jobs.waiting import PASSED_OVER, WaitReason, in_words, not_due, waiting_reasons
from salon_jobs.models import CronTick, FanOutRecord, FollowUp, Job, JobError, JobStep
from salon_jobs.schedules.scheduler import tick_of
from salon_jobs.tenancy.names import store_names
from salon_jobs.words import followed, instant

# Reasons of ended jobs, in words; for operators' reasons with the text of the admin's log.
BY_OPERATORS: Final = {"cancelled": "cancelled", "discarded: by an operator": "discarded"}
_OUTCOMES: Final = {
    **BY_OPERATORS,
    "not_retried": gettext_noop("failed with an error that is not retried"),
    "process_died": gettext_noop("failed, since its processes died"),
    "superseded": gettext_noop("cancelled, since a newer job has its key"),
}


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job in a list, at the time ``now``.

    ``reasons`` are why it does not run: None unless it is queued, empty if it only waits for its turn. Readers of one
    store (not ``sees_all``) learn only when it is due, since limits and workers belong to no store.
    """

    job: Any
    now: datetime
    sees_all: bool
    reasons: Sequence[WaitReason] | None
    progress: str
    last_error: JobError | None

    @property
    def waiting(self) -> str | None:
        """The reasons in words."""
        return None if self.reasons is None else in_words(self.reasons)

    @property
    def attempts(self) -> str:
        """The attempts used, or the number of the current one, and how often a worker died while running the job."""
        job = self.job
        if job.state == JobState.RUNNING:
            said, number = gettext("attempt %(number)s of %(most)s"), job.attempts + 1
        else:
            number = job.attempts
            said = ngettext("%(number)s of %(most)s attempt", "%(number)s of %(most)s attempts", job.max_attempts)
        shown = said % {"number": f"{number:,}", "most": f"{job.max_attempts:,}"}
        return f"{shown}; {self.deaths}" if job.rescues else shown

    @property
    def deaths(self) -> str:
        """How many processes died while running the job, which counts apart from the attempts; "" for none."""
        times = self.job.rescues
        said = ngettext("%(times)s process died running it", "%(times)s processes died running it", times)
        return said % {"times": f"{times:,}"} if times else ""

    @property
    def error(self) -> str:
        """Its newest error without its traceback."""
        last = self.last_error
        error_class, message = (self.job.error_class, "") if last is None else (last.error_class, last.message)
        return ": ".join(part for part in ((error_class or "").rpartition(".")[2], message) if part)

    @property
    def outcome(self) -> str:
        """The reason why it failed or was cancelled, in words."""
        job = self.job
        if job.state not in (JobState.FAILED, JobState.CANCELLED):
            return ""
        if job.reason == "attempts_exhausted":
            said = ngettext("failed after its only attempt", "failed after all %(attempts)s attempts", job.max_attempts)
            return said % {"attempts": f"{job.max_attempts:,}"}
        if job.reason == "process_died" and self.deaths:
            return gettext("failed since %(deaths)s") % {"deaths": self.deaths}
        said = _in_words(job.reason)
        if job.reason in BY_OPERATORS:
            return gettext("%(done)s, %(at)s") % {"done": said, "at": instant(job.finished_at)}
        return said

    @property
    def trouble(self) -> str:
        """Why it failed, perhaps before the current attempt, or why it was cancelled; "" for a job that succeeded."""
        job = self.job
        if job.state == JobState.CANCELLED:
            return _in_words(job.reason)
        if job.state == JobState.SUCCEEDED or not self.error:
            return ""
        is_running = job.state == JobState.RUNNING
        return gettext("before: %(error)s") % {"error": self.error} if is_running else self.error

    @property
    def turn(self) -> str:
        """What a queued job waits for if nothing is known to keep it from running."""
        if self.now - self.job.run_at > PASSED_OVER:
            return gettext("jobs before it come first, or its row may be locked")
        return gettext("it is not its turn yet")

    @property
    def is_only_early(self) -> bool:
        """Whether only its time keeps a queued job from running."""
        return bool(self.reasons) and all(each.kind == "early" for each in self.reasons or ())

    @property
    def claimed_at(self) -> datetime | None:
        """When the current worker claimed the job; it may have to wait for a thread."""
        return self.job.started_at if self.job.state == JobState.RUNNING else None

    @property
    def began_at(self) -> datetime | None:
        """When the run that ended the job began, if one did: runs of dead processes have not."""
        job = self.job
        has_run = job.state in (JobState.SUCCEEDED, JobState.FAILED) and job.reason != "process_died"
        return job.started_at if has_run else None

    @property
    def ran_s(self) -> float | None:
        """How long that run took."""
        return None if self.began_at is None else seconds_between(self.began_at, self.job.finished_at)

    @property
    def waited_s(self) -> float | None:
        """Seconds that the claimed job waited for a free thread before that run."""
        claimed, began = self.job.claimed_at, self.began_at
        return None if began is None or claimed is None else seconds_between(claimed, began)


class Origin(NamedTuple):
    """The cause of a job's enqueueing, with its row, if it is a single one."""

    text: str
    row: tuple[type[Model], int] | None = None


@dataclass(frozen=True, slots=True)
class JobPage(JobRow):
    """Everything known of one job: errors and steps, newest first, and its relations to other jobs.

    For readers of one store there is neither a tick nor a follow-up.
    """

    errors: Sequence[JobError]
    steps: Sequence[JobStep]
    tick: CronTick | None
    follow_up: FollowUp | None
    flow: FlowSummary | None
    order: PlaceInOrder | None

    @property
    def payload(self) -> Any:
        """The arguments, without hidden values."""
        return registry.visible(self.job.task, self.job.payload)

    @property
    def retries(self) -> list[NextAttempt]:
        """When the next attempts become due, if those before them fail at once."""
        return retries_ahead(self.job, self.now)

    @property
    def origin(self) -> Origin | None:
        """A fan-out, the end of other jobs that it follows, or the tick of a cron entry."""
        job, follows = self.job, self.job.follows
        if job.fan_out_id is not None:
            text = gettext("fan-out %(id)s") % {"id": job.fan_out_id}
            return Origin(text, (FanOutRecord, job.fan_out_id))
        if follows is not None:
            if follows["fan_out"] is not None:
                return Origin(followed(follows), (FanOutRecord, follows["fan_out"]))
            return Origin(followed(follows), (Job, follows["first"]) if follows["jobs"] == 1 else None)
        if self.tick is None:
            return None
        tick = {"name": self.tick.entry, "time": instant(self.tick.tick_at)}
        return Origin(gettext("cron entry %(name)s at %(time)s") % tick, (CronTick, self.tick.pk))

    @property
    def then(self) -> str:
        """The job to enqueue when this job and those enqueued with it have ended."""
        if self.job.follow_up_id is None:
            return ""
        if self.follow_up is None:
            return gettext("its follow-up has been enqueued")
        remaining = self.follow_up.remaining
        said = ngettext("%(task)s, after %(jobs)s more job", "%(task)s, after %(jobs)s more jobs", remaining)
        return said % {"task": self.follow_up.task, "jobs": f"{remaining:,}"}


def job_rows(jobs: Iterable[Any], *, using: str, sees_all: bool = True) -> list[JobRow]:
    """Read the list rows of these jobs, in five queries at most. Role: operator, worker; web for its store."""
    jobs, now = list(jobs), clock.now(using)
    tried = [job.pk for job in jobs if job.attempts or job.rescues or job.state == JobState.FAILED]
    newest = JobError.objects.using(using).filter(job_id__in=tried).order_by("job_id", "-pk").distinct("job_id")
    errors = {error.job_id: error for error in newest.only("job_id", "error_class", "message")} if tried else {}
    waiting = _waiting(jobs, now, sees_all, using)
    progress = progress_of(jobs, using=using)
    return [
        JobRow(job, now, sees_all, waiting.get(job.pk), progress.get(job.pk, ""), errors.get(job.pk)) for job in jobs
    ]


def job_page(job: Any, *, using: str, sees_all: bool = True, most: int | None = None) -> JobPage:
    """Read everything known of a job, with ``most`` errors and steps. Role: operator, worker; web for its store."""
    now = clock.now(using)
    errors = list(errors_of(job, using=using)[:most])
    steps = JobStep.objects.using(using).filter(job_id=job.pk).order_by("-committed_at", "-pk")[:most]
    follow_up = None
    if sees_all and job.follow_up_id is not None:
        follow_up = FollowUp.objects.using(using).filter(pk=job.follow_up_id).only("task", "remaining").first()
    return JobPage(
        job,
        now,
        sees_all,
        _waiting([job], now, sees_all, using).get(job.pk),
        progress_of([job], using=using).get(job.pk, ""),
        errors[0] if errors else None,
        errors,
        list(steps),
        tick_of(job, using=using) if sees_all else None,
        follow_up,
        summarize_flow(job, using=using),
        place_in_order(job, using=using),
    )


def errors_of(job: Any, *, using: str) -> QuerySet[JobError]:
    """Return a job's errors, newest first, without those of a running attempt; deaths of its processes are no attempts.

    Such an attempt has ended since the job was read: the state would contradict its error.
    """
    rows = JobError.objects.using(using).filter(job_id=job.pk).order_by("-pk")
    if job.state != JobState.RUNNING:
        return rows
    died = Q(code=ProcessDied.code, occurred_at__lte=job.started_at)
    return rows.filter(Q(attempt__lte=job.attempts) | died)


def _in_words(reason: str) -> str:
    return gettext(_OUTCOMES.get(reason, reason)) if reason else ""


def seconds_between(first: datetime, last: datetime) -> float:
    """Return the seconds from ``first`` to ``last``, at least 0 even if clocks differ."""
    return max(0.0, (last - first).total_seconds())


def name_of(store: StoreId) -> str:
    """Return a store's name, or its ID if this process cannot read the name."""
    return store_names({store})[store]


def _waiting(jobs: Sequence[Any], now: datetime, sees_all: bool, using: str) -> dict[int, list[WaitReason]]:
    if sees_all:
        return waiting_reasons(jobs, using=using, now=now, store_name=name_of)
    return not_due(jobs, using=using, now=now)
