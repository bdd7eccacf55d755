"""Admin pages for jobs: the list, one job, and failures grouped by cause."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast
from uuid import UUID

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator

from salon_jobs.admin.base import as_json, as_reader, instant, reader, sees_all_stores
from salon_jobs.admin.filters import (
    EnqueuedFilter,
    ErrorClassFilter,
    FailureKindFilter,
    QueueFilter,
    StoreFilter,
    TaskFilter,
)
from salon_jobs.admin.job_actions import JobActions
from salon_jobs.conf import settings as conf
from salon_jobs.core.records import JobState
from salon_jobs.jobs.search import COUNTED, MOST_KINDS, Retry, failure_kinds, with_key
from salon_jobs.jobs.search import retries_ahead as reckon
from salon_jobs.models import CronTick, FanOutRecord, Job, JobError
from salon_jobs.schedule.queries import tick_of

_SHOWN = 50
_SUMMARY = 200
_TRACE_ID = re.compile(r"\b[0-9a-f]{32}\b")


def errors(job: Job) -> SafeString | str:
    """Format the newest fifty errors with their tracebacks, the newest one open."""
    rows = JobError.objects.using(job._state.db).filter(job_id=job.pk).order_by("-id")[:_SHOWN]
    blocks = [
        (
            SafeString("" if number else " open"),
            error.attempt,
            instant(error.occurred_at),
            error.error_class,
            f" ({error.code})" if error.code else "",
            *_short(error.message),
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


def ahead(job: Job) -> SafeString | str:
    """Format the earliest and latest time at which each next attempt becomes due, if all before it fail at once."""
    retries = reckon(job, timezone.now())
    if not retries:
        return "none"
    lines = [(f"Attempt {retry.attempt}: {_span(retry)}",) for retry in retries]
    if (left := job.max_attempts - retries[-1].attempt) > 0:
        lines.append((f"and {left:,} more",))
    return format_html("<div>{}</div>", format_html_join("", "<div>{}</div>", lines))


def origin(job: Job, address_of: Callable[[type[Model], object], str]) -> SafeString | str:
    """Link to the fan-out that added the job, or to the ticks of the cron entry whose tick added it."""
    if job.fan_out_id is not None:
        url = address_of(FanOutRecord, job.fan_out_id)
        return format_html('<a href="{}">fan-out {}</a>', url, job.fan_out_id)
    tick = tick_of(job, using=job._state.db or conf.reader_database)
    if tick is None:
        return "-"
    url = address_of(CronTick, tick.pk)
    return format_html('<a href="{}">cron entry {}</a> at {}', url, tick.entry, instant(tick.tick_at))


def trace(job: Job) -> SafeString | str:
    """Link to the trace that the job continues, using ``TRACE_LINK``; without it, show the trace id."""
    kept: object = job.trace
    headers = cast("dict[str, str]", kept) if isinstance(kept, dict) else {}
    found = _TRACE_ID.search(f"{headers.get('traceparent', '')} {headers.get('sentry-trace', '')}")
    if found is None:
        return "-"
    if conf.trace_link is None:
        return found[0]
    return format_html('<a href="{}">{}</a>', conf.trace_link.replace("{trace_id}", found[0]), found[0])


def _short(message: str) -> tuple[str, str]:
    """Return a summary of the message, and the whole of it where the summary omits something."""
    summary = Truncator(message).chars(_SUMMARY)
    return summary, "" if summary == message else message


def _span(retry: Retry) -> str:
    earliest, latest = instant(retry.earliest), instant(retry.latest)
    return earliest if earliest == latest else f"{earliest} to {latest}"


@admin.register(Job)
class JobAdmin(JobActions):
    """Admin of jobs by state, task, queue, store, time and error; a job's page shows everything known about it."""

    has_rows_of_stores = True
    linked_by = ("fan_out_id__exact", "leased_by__exact")
    change_list_template = "admin/salon_jobs/jobs.html"
    change_form_template = "admin/salon_jobs/job.html"
    list_display = ("id", "task", "standing", "why", "attempt_count", "store_id", "queue", "run_at", "finished_at")
    list_filter = ("state", FailureKindFilter, ErrorClassFilter, EnqueuedFilter, QueueFilter, TaskFilter, StoreFilter)
    search_fields = ("id__exact", "job_key__exact", "store_id__exact")
    search_help_text = "A job's id, its key, or its store's id, in full"
    ordering = ("-id",)
    sortable_by = ("id",)  # sorting by any other column would read every row
    list_per_page = 50
    fieldsets = (
        (None, {"fields": ("task", "standing", "reason", "store_id", "queue", "priority", "origin")}),
        ("Runs", {"fields": ("attempt_count", "rescues", "retries_ahead", "trace_link", "errors")}),
        ("Payload", {"fields": ("shown_payload", "job_key", "concurrency_key")}),
        (
            "Times",
            {
                "fields": (
                    "created_at",
                    "run_at",
                    "started_at",
                    "finished_at",
                    "cancel_requested_at",
                    "expires_at",
                    "tick",
                )
            },
        ),
        ("Lease", {"fields": ("leased_by", "lease"), "classes": ("collapse",)}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        """Defer the payload, which can be large, to a job's own page."""
        return super().get_queryset(request).defer("payload")

    def get_search_results(self, request: HttpRequest, queryset: QuerySet[Job], search_term: str) -> tuple[Any, bool]:
        """Search for exact matches of the id, store or key, whichever the term can be: each is served by an index."""
        term = search_term.strip()
        if not term:
            return queryset, False
        found = with_key(term)
        if len(term) < 20 and term.isdecimal() and int(term) < 2**63:
            found |= Q(pk=int(term))
        with suppress(ValueError):  # not a store's id
            found |= Q(store_id=UUID(term))
        return queryset.filter(found), False

    def get_urls(self) -> list[URLPattern]:
        """Return the pages, including that of grouped failures."""
        view = as_reader(self.admin_site.admin_view(self.failures), self.admin_site)
        return [path("failures/", view, name="salon_jobs_job_failures"), *super().get_urls()]

    def failures(self, request: HttpRequest) -> TemplateResponse:
        """Show the failures grouped by kind, each with its newest job and an action that retries all its jobs."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            "title": "Kinds of failures",
            "opts": self.opts,
            "media": self.media,
            "kinds": failure_kinds(using=reader(request)),
            "counted": COUNTED,
            "most": MOST_KINDS,
            "may_retry": self.has_retry_permission(request),
        }
        return TemplateResponse(request, "admin/salon_jobs/failures.html", context)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Show a job, with a button for each action that the user may take."""
        actions = self.get_action_choices(request, [])
        buttons = [(name, text.removesuffix(" selected jobs").removesuffix(" of")) for name, text in actions]
        return super().change_view(request, object_id, form_url, {"buttons": buttons, **(extra_context or {})})

    @admin.display(description="state")
    def standing(self, job: Job) -> str:
        """Show the state, and how the job stands in time where that says more."""
        return job.state if job.timeliness in (job.state, "completed") else f"{job.state}, {job.timeliness}"

    @admin.display(description="why")
    def why(self, job: Job) -> str:
        """Show the error class of the last failure, or the reason of the cancellation."""
        failed = job.state == JobState.FAILED and job.error_class
        return (job.error_class or "").removeprefix("builtins.") if failed else job.reason

    @admin.display(description="attempts", ordering="attempts")
    def attempt_count(self, job: Job) -> str:
        """Show the attempts out of the maximum."""
        return f"{job.attempts} of {job.max_attempts}"

    @admin.display(description="payload")
    def shown_payload(self, job: Job) -> SafeString:
        """Show the redacted payload as indented JSON."""
        return as_json(job.payload)

    @admin.display(description="errors")
    def errors(self, job: Job) -> SafeString | str:
        """Show each attempt's error with its traceback, newest first, the newest one open."""
        return errors(job)

    @admin.display(description="retries ahead")
    def retries_ahead(self, job: Job) -> SafeString | str:
        """Show when the job would run again if it keeps failing."""
        return ahead(job)

    @admin.display(description="trace")
    def trace_link(self, job: Job) -> SafeString | str:
        """Link to the trace that the job continues."""
        return trace(job)

    @admin.display(description="enqueued by")
    def origin(self, job: Job) -> SafeString | str:
        """Link to the cron entry's tick, or to the fan-out."""
        return origin(job, self.address_of)

    def get_fieldsets(self, request: HttpRequest, obj: Job | None = None) -> Any:
        """Leave out what staff of one store may not see: cron ticks and fan-outs belong to no store."""
        shown = super().get_fieldsets(request, obj)
        if sees_all_stores(request):
            return shown
        return [(name, {**each, "fields": [f for f in each["fields"] if f != "origin"]}) for name, each in shown]
