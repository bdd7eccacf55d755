"""Admin pages for jobs: the list, one job, and errors grouped by cause."""

from __future__ import annotations

import re
from typing import Any, cast

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator

from salon_jobs.admin.actions import ActionAdmin
from salon_jobs.admin.base import as_json, as_reader, id_or_uuid, instant, reader, sees_all_stores, without_field
from salon_jobs.admin.filters import (
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
from salon_jobs.jobs.search import COUNTED, MOST_KINDS, failure_kinds, retries_ahead, with_key
from salon_jobs.models import CronTick, FanOutRecord, Job, JobError
from salon_jobs.schedule.queries import tick_of

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


@admin.register(Job)
class JobAdmin(ActionAdmin):
    """Admin of jobs by state, task, queue, store, time and error; a job's page shows everything known about it."""

    has_rows_of_stores = True
    linked_by = ("fan_out_id__exact", "leased_by__exact")
    change_list_template = "admin/salon_jobs/jobs.html"
    change_form_template = "admin/salon_jobs/job.html"
    list_display = ("id", "task", "status", "why", "attempt_count", "store", "queue", "run_at", "finished_at")
    list_filter = ("state", ErrorGroupFilter, ErrorClassFilter, EnqueuedFilter, QueueFilter, TaskFilter, StoreFilter)
    search_fields = ("id__exact", "job_key__exact", "store_id__exact")
    search_help_text = "The full ID or key of a job, or the ID of a store"
    actions = JOB_ACTIONS
    fieldsets = (
        (None, {"fields": ("task", "status", "reason", "store", "queue", "priority", "origin")}),
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
        matches = with_key(term) | id_or_uuid(term, uuid_field="store_id")
        return queryset.filter(matches), False

    def get_urls(self) -> list[URLPattern]:
        """Return the pages, including that of grouped errors."""
        view = as_reader(self.admin_site.admin_view(self.failures), self.admin_site)
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

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Show a job, with a button for each action that the user may take."""
        actions = self.get_action_choices(request, [])
        buttons = [(name, text.removesuffix(" selected jobs").removesuffix(" of")) for name, text in actions]
        return super().change_view(request, object_id, form_url, {"buttons": buttons, **(extra_context or {})})

    @admin.display(description="state")
    def status(self, job: Job) -> str:
        """Show the state, and its timeliness where that says more."""
        return job.state if job.timeliness in (job.state, "completed") else f"{job.state}, {job.timeliness}"

    @admin.display(description="why")
    def why(self, job: Job) -> str:
        """Show the error class of the last failure, or the reason of the cancellation."""
        failed = job.state == JobState.FAILED and job.error_class
        return (job.error_class or "").removeprefix("builtins.") if failed else job.reason

    @admin.display(description="attempts", ordering="attempts")
    def attempt_count(self, job: Job) -> str:
        return f"{job.attempts} of {job.max_attempts}"

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
        for retry in (retries := retries_ahead(job, timezone.now())):
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

    def get_fieldsets(self, request: HttpRequest, obj: Job | None = None) -> Any:
        """Leave out what staff of one store may not see: cron ticks and fan-outs belong to no store."""
        shown = super().get_fieldsets(request, obj)
        if sees_all_stores(request):
            return shown
        return without_field(shown, "origin")
