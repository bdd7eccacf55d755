"""Admin pages for jobs: the list, one job, and errors grouped by cause."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, cast

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator

from salon_jobs.admin.actions import ActionAdmin
from salon_jobs.admin.base import (
    MOST,
    OrderedList,
    as_json,
    as_reader,
    badge,
    explained,
    id_or_uuid,
    may,
    reader,
    sees_all_stores,
)
from salon_jobs.admin.filters import (
    EndedFilter,
    EnqueuedFilter,
    ErrorClassFilter,
    ErrorGroupFilter,
    QueueFilter,
    StoreFilter,
    TaskFilter,
)
from salon_jobs.admin.job_actions import JOB_ACTIONS, RETRY
from salon_jobs.conf import settings as conf
from salon_jobs.core.records import JobState
from salon_jobs.core.units import counted, duration
from salon_jobs.dashboard.stores import store_name
from salon_jobs.dashboard.times import ago, instant
from salon_jobs.jobs.search import COUNTED, MOST_KINDS, failure_kinds, retries_ahead, with_key
from salon_jobs.jobs.waiting import due_in, waiting_reasons
from salon_jobs.models import CronTick, FanOutRecord, Job, JobError, JobResult, Process
from salon_jobs.schedule.scheduler import tick_of

_SHOWN = 50
_SUMMARY = 200
_TRACE_ID = re.compile(r"\b[0-9a-f]{32}\b")


def format_errors(job: Job) -> SafeString | str:
    """Format the newest fifty errors with their tracebacks, the newest one open."""
    rows = JobError.objects.using(job._state.db).filter(job_id=job.pk).order_by("-id")[:_SHOWN]
    blocks = [
        (
            SafeString("" if number else " open"),
            error.attempt,
            instant(error.occurred_at),
            error.error_class,
            f" ({error.code})" if error.code else "",
            (summary := Truncator(error.message).chars(_SUMMARY)),
            "" if summary == error.message else error.message,
            error.traceback or "no traceback: the process died",
        )
        for number, error in enumerate(rows)
    ]
    if not blocks:
        return "none"
    template = (
        '<details{} class="salon-jobs-error"><summary>Attempt {} · {} · <strong>{}</strong>{}: {}</summary>'
        '<p>{}</p><pre class="salon-jobs-text">{}</pre></details>'
    )
    return format_html("<div>{}</div>", format_html_join("", template, blocks))


class JobList(OrderedList):
    """List of jobs that reads, for the page it shows, the last errors and why jobs wait."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        model_admin: Any = self.model_admin
        self.result_list = described(self.result_list, request)
        for job in self.result_list:
            job.buttons = model_admin.buttons_of(job, request)


def described(jobs: Iterable[Job], request: HttpRequest) -> list[Any]:
    """Give each job its last error and why it waits, for the admin's columns.

    Four queries at most. Of why jobs wait, staff of one store are shown only when theirs are due: limits and workers
    are no store's own.
    """
    rows: list[Any] = list(jobs)
    using, now, may_see_all = reader(request), datetime.now(UTC), sees_all_stores(request)
    tried = [job.pk for job in rows if job.attempts or job.state == str(JobState.FAILED)]
    newest = JobError.objects.using(using).filter(job_id__in=tried).order_by("job_id", "-id").distinct("job_id")
    errors = {error.job_id: error for error in newest} if tried else {}
    reasons = waiting_reasons(rows, using=using, now=now) if may_see_all else {}
    for job in rows:
        job.now, job.last_error = now, errors.get(job.pk)
        if job.state == str(JobState.QUEUED):
            job.waits_for = reasons[job.pk] if may_see_all else due_in(job, now)
    return rows


# Columns that a job's page leaves out when they are empty.
_OPTIONAL = ("started_at", "finished_at", "cancel_requested_at", "expires_at", "tick", "job_key", "concurrency_key")
_BADGES = {
    "queued": "waiting",
    "scheduled": "waiting",
    "retrying": "warn",
    "running": "busy",
    "cancelling": "busy",
    "succeeded": "good",
    "failed": "bad",
    "timed out": "bad",
}


class JobAdmin(ActionAdmin):
    """Admin of jobs by state, task, queue, store, time and error; a job's page shows everything known about it."""

    has_rows_of_stores = True
    empty_hint = "Jobs are enqueued by your code; those that succeed are deleted, unless RETAIN_SUCCEEDED keeps them."
    related = (FanOutRecord,)
    linked_by = ("fan_out_id__exact", "leased_by__exact", "state__exact")
    change_list_template = "admin/salon_jobs/jobs.html"
    list_display = ("job", "progress", "detail", "enqueued", "row_actions")
    sortable_by = ("job",)
    list_filter = (
        ErrorGroupFilter,
        ErrorClassFilter,
        EndedFilter,
        EnqueuedFilter,
        QueueFilter,
        TaskFilter,
        StoreFilter,
    )
    search_fields = ("id__exact", "job_key__exact", "store_id__exact")
    search_help_text = "The full ID or key of a job, or the ID of a store"
    actions = JOB_ACTIONS
    fieldsets = (
        (None, {"fields": ("task", "status", "detail", "store", "queue", "attempt_count", "origin")}),
        ("Payload", {"fields": ("shown_payload",)}),
        ("Errors", {"fields": ("errors", "retries_ahead")}),
        (
            "Times",
            {
                "fields": (
                    "created_at",
                    "run_at",
                    "started_at",
                    "finished_at",
                    "took",
                    "cancel_requested_at",
                    "expires_at",
                    "tick",
                )
            },
        ),
        (
            "Details",
            {
                "fields": ("priority", "job_key", "concurrency_key", "trace_link", "rescues", "process"),
                "classes": ("collapse",),
            },
        ),
    )

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[JobList]:
        return JobList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        """Defer the payload, which can be large, to a job's own page."""
        return super().get_queryset(request).defer("payload")

    def get_search_results(self, request: HttpRequest, queryset: QuerySet[Job], search_term: str) -> tuple[Any, bool]:
        """Search for exact matches of the id, store or key, whichever the term can be: each is served by an index."""
        term = search_term.strip()
        if not term:
            return queryset, False
        matches = with_key(term) | id_or_uuid(term, uuid_field="store_id")
        return queryset.filter(matches), False

    def get_urls(self) -> list[URLPattern]:
        """Return the pages, including that of grouped errors."""
        site = self.admin_site
        view = explained(as_reader(site.admin_view(self.failures), site), site)
        return [path("failures/", view, name="salon_jobs_job_failures"), *super().get_urls()]

    def failures(self, request: HttpRequest) -> TemplateResponse:
        """Show groups of failed jobs with the same cause, each with its newest job and a button to retry them all."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            "title": "Grouped errors",
            "opts": self.opts,
            "media": self.media,
            "kinds": failure_kinds(using=reader(request)),
            "counted": COUNTED,
            "most": MOST_KINDS,
            "may_retry": RETRY.is_allowed(request),
        }
        return TemplateResponse(request, "admin/salon_jobs/failures.html", context)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Show the list with the number of jobs in each state."""
        context = {**(extra_context or {}), "states": self._states(request)}
        return super().changelist_view(request, context)

    def _states(self, request: HttpRequest) -> list[tuple[str, str]]:
        """Return each state with its number of jobs, up to 10,000.

        Without numbers for staff of one store: no index holds a store's jobs by state.
        """
        if not sees_all_stores(request):
            return [(state.value, "") for state in JobState]
        rows = Job.objects.using(reader(request)).order_by()
        numbers = [(state.value, rows.filter(state=state.value)[: MOST + 1].count()) for state in JobState]
        return [(state, counted(number, MOST + 1)) for state, number in numbers]

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the job with what its columns show."""
        found = super().get_object(request, object_id, from_field)
        return None if found is None else described([found], request)[0]

    def _get_obj_does_not_exist_redirect(self, request: HttpRequest, opts: Any, object_id: str) -> Any:
        """Show the kept result of a job that is gone, or say on the list of jobs what may have become of it."""
        if object_id.isdecimal() and len(object_id) < 20 and may(request, "salon_jobs.view_jobresult"):
            kept = JobResult.objects.using(reader(request)).filter(pk=int(object_id)).exists()
            if kept:
                return HttpResponseRedirect(self.address_of(JobResult, object_id))
        name = f"Job {object_id}" if object_id.isdecimal() else "That job"
        why = "" if conf.keep_succeeded else ": succeeded jobs are deleted at once (RETAIN_SUCCEEDED keeps them)"
        text = f"{name} does not exist, or has ended and been deleted{why}."
        self.message_user(request, text, messages.WARNING)
        return HttpResponseRedirect(self.address_of_list())

    def state_of(self, row: Any) -> str:
        return str(row.state)

    def line(self, row: Any) -> str:
        """Name a job by what an operator knows it by."""
        parts = (f"#{row.pk} {row.task}", row.state, row.error_class, store_name(row.store_id) if row.store_id else "")
        return " · ".join(part for part in parts if part)

    @admin.display(description="job", ordering="id")
    def job(self, job: Any) -> SafeString:
        """Name the job by its task, and below by its number, store and queue."""
        store = store_name(job.store_id) if job.store_id and conf.store_model else ""
        rest = " · ".join(part for part in (f"#{job.pk}", store, job.queue) if part)
        return format_html('{}<small title="{}">{}</small>', job.task, job.store_id or "", rest)

    @admin.display(description="state")
    def status(self, job: Any) -> SafeString:
        """Show the state as a badge."""
        shown = job.timeliness
        return badge(shown, _BADGES.get(shown, "quiet"))

    @admin.display(description="state")
    def progress(self, job: Any) -> SafeString:
        """Show the state, and below how many attempts it took."""
        return format_html("{}<small>{}</small>", self.status(job), self.attempt_count(job))

    @admin.display(description="why")
    def detail(self, job: Any) -> SafeString | str:
        """Show why the job waits, its last error, or the reason why it was cancelled."""
        parts: list[str] = [job.waits_for] if getattr(job, "waits_for", "") else []
        if (error := getattr(job, "last_error", None)) is not None and job.state != str(JobState.CANCELLED):
            name = error.error_class.rpartition(".")[2]
            parts.append(f"{name}: {error.message}" if error.message else name)
        elif why := (job.error_class or "").rpartition(".")[2] if job.state == str(JobState.FAILED) else job.reason:
            parts.append(why)
        return Truncator("; ".join(parts)).chars(_SUMMARY) or "-"

    @admin.display(description="enqueued")
    def enqueued(self, job: Any) -> SafeString:
        """Show when the job was enqueued, and below how long its run took or has been running."""
        took = self.took(job)
        verb = "running" if job.state == str(JobState.RUNNING) else "ran"
        return format_html("{}<small>{}</small>", ago(job.created_at, job.now), "" if took == "-" else f"{verb} {took}")

    @admin.display(description="duration")
    def took(self, job: Any) -> str:
        """Show how long the last run took, or has been running."""
        if job.started_at is None or job.state == str(JobState.QUEUED):
            return "-"
        end = job.finished_at or job.now
        return duration(max(0.0, (end - job.started_at).total_seconds()))

    @admin.display(description="attempts")
    def attempt_count(self, job: Job) -> str:
        return f"{job.attempts} of {job.max_attempts}"

    @admin.display(description="process")
    def process(self, job: Any) -> SafeString | str:
        """Link to the worker that holds the job."""
        if job.leased_by is None:
            return "-"
        return format_html('<a href="{}">{}</a>', self.address_of(Process, job.leased_by), job.leased_by)

    @admin.display(description="payload")
    def shown_payload(self, job: Job) -> SafeString:
        return as_json(job.payload)

    @admin.display(description="errors")
    def errors(self, job: Job) -> SafeString | str:
        return format_errors(job)

    @admin.display(description="upcoming retries")
    def retries_ahead(self, job: Job) -> SafeString | str:
        """Show the earliest and latest time at which each next attempt becomes due, if all before it fail at once."""
        lines: list[tuple[str]] = []
        for retry in (retries := retries_ahead(job, datetime.now(UTC))):
            earliest, latest = instant(retry.earliest), instant(retry.latest)
            lines.append((f"Attempt {retry.attempt}: {earliest if earliest == latest else f'{earliest} to {latest}'}",))
        if retries and (more := job.max_attempts - retries[-1].attempt) > 0:
            lines.append((f"and {more:,} more",))
        return format_html("<div>{}</div>", format_html_join("", "<div>{}</div>", lines)) if lines else "none"

    @admin.display(description="trace")
    def trace_link(self, job: Job) -> SafeString | str:
        """Link to the trace that the job continues, using ``TRACE_LINK``; without it, show the trace id."""
        kept: object = job.trace
        headers = cast("dict[str, str]", kept) if isinstance(kept, dict) else {}
        match = _TRACE_ID.search(f"{headers.get('traceparent', '')} {headers.get('sentry-trace', '')}")
        if match is None:
            return "-"
        if conf.trace_link is None:
            return match[0]
        return format_html('<a href="{}">{}</a>', conf.trace_link.replace("{trace_id}", match[0]), match[0])

    @admin.display(description="enqueued by")
    def origin(self, job: Job) -> SafeString | str:
        """Link to the fan-out that added the job, or to the tick of the cron entry that did."""
        if job.fan_out_id is not None:
            url = self.address_of(FanOutRecord, job.fan_out_id)
            return format_html('<a href="{}">fan-out {}</a>', url, job.fan_out_id)
        tick = tick_of(job, using=job._state.db or conf.reader_database)
        if tick is None:
            return "-"
        url = self.address_of(CronTick, tick.pk)
        return format_html('<a href="{}">cron entry {}</a> at {}', url, tick.entry, instant(tick.tick_at))

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Leave out what is empty, and what staff of one store may not see: ticks and fan-outs belong to no store."""
        shown = super().get_fieldsets(request, obj)
        unseen = {name for name in _OPTIONAL if obj is not None and getattr(obj, name) is None}
        if not sees_all_stores(request):
            unseen |= {"origin", "process"}
        elif obj is not None and self.origin(obj) == "-":
            unseen.add("origin")
        if obj is not None and not (obj.attempts and retries_ahead(obj, datetime.now(UTC))):
            unseen.add("retries_ahead")
        return [(name, {**each, "fields": [f for f in each["fields"] if f not in unseen]}) for name, each in shown]
