"""Shows jobs with their payload and the traceback of every attempt; retries and cancels in bulk."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from salon_jobs.admin.base import ReadOnlyAdmin, may
from salon_jobs.admin.filters import QueueFilter, StoreFilter, TaskFilter
from salon_jobs.admin.reader import reader
from salon_jobs.jobs import operate
from salon_jobs.jobs.find import with_key
from salon_jobs.jobs.operate import BATCH, Operated
from salon_jobs.models import Job, JobError

_REFUSALS_SHOWN = 5


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    """Lists jobs by state, task, queue and store; a job's page shows everything known about it."""

    has_rows_of_stores = True
    list_display = (
        "id",
        "task",
        "state",
        "timeliness",
        "attempt_count",
        "store_id",
        "queue",
        "run_at",
        "finished_at",
        "reason",
    )
    list_filter = ("state", TaskFilter, QueueFilter, StoreFilter)
    search_fields = ("id__exact", "job_key__exact", "store_id__exact")
    search_help_text = "A job's id, its key, or its store's id, in full"
    ordering = ("-id",)
    sortable_by = ("id",)  # sorting by any other column would read every row
    list_per_page = 50
    actions = ("retry", "cancel")
    fieldsets = (
        (None, {"fields": ("task", "state", "timeliness", "reason", "store_id", "queue", "priority")}),
        ("Runs", {"fields": ("attempt_count", "rescues", "errors")}),
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
        """Leave the payload, which can be large, until a job's own page asks for it."""
        return super().get_queryset(request).defer("payload")

    def get_search_results(self, request: HttpRequest, queryset: QuerySet[Job], search_term: str) -> tuple[Any, bool]:
        """Search exactly, by whichever of id, store and key the term can be: each is served by an index."""
        term = search_term.strip()
        if not term:
            return queryset, False
        found = with_key(term)
        if term.isdecimal() and int(term) < 2**63:
            found |= Q(pk=int(term))
        with suppress(ValueError):  # then it is no store's id
            found |= Q(store_id=UUID(term))
        return queryset.filter(found), False

    @admin.display(description="attempts", ordering="attempts")
    def attempt_count(self, job: Job) -> str:
        """Show the attempts of how many."""
        return f"{job.attempts} of {job.max_attempts}"

    @admin.display(description="payload")
    def shown_payload(self, job: Job) -> SafeString:
        """Show the payload as indented JSON."""
        text = json.dumps(job.payload, indent=2, ensure_ascii=False)
        return format_html('<pre style="white-space: pre-wrap">{}</pre>', text)

    @admin.display(description="errors")
    def errors(self, job: Job) -> SafeString | str:
        """Show each attempt's error, the newest first and open, with its traceback."""
        errors = JobError.objects.using(job._state.db).filter(job_id=job.pk).order_by("-id")[:50]
        blocks = [
            (SafeString("" if number else " open"), error.attempt, error.occurred_at.isoformat(" ", "seconds"),
             error.error_class, error.message, error.traceback or "no traceback: the process died")
            for number, error in enumerate(errors)
        ]  # fmt: skip
        if not blocks:
            return "none"
        template = (
            "<details{}><summary>Attempt {} · {} · <strong>{}</strong>: {}</summary>"
            '<pre style="overflow-x: auto; max-width: 80vw">{}</pre></details>'
        )
        return format_html("<div>{}</div>", format_html_join("", template, blocks))

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may retry jobs."""
        return may(request, "salon_jobs.retry_job")

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may cancel jobs."""
        return may(request, "salon_jobs.cancel_job")

    @admin.action(description="Retry selected jobs", permissions=["retry"])
    def retry(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        """Queue the selected failed or cancelled jobs again, due now."""
        self._operate(request, queryset, operate.retry_jobs, "retried")

    @admin.action(description="Cancel selected jobs", permissions=["cancel"])
    def cancel(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        """Cancel the selected jobs; those that run are asked to end."""
        self._operate(request, queryset, operate.cancel_jobs, "cancelled")

    def _operate(
        self, request: HttpRequest, queryset: QuerySet[Job], change: Callable[..., list[Operated]], done: str
    ) -> None:
        """Change the selection in batches, the newest first: jobs enqueued meanwhile are not chased."""
        changed = refused = asked = 0
        refusals: list[Operated] = []
        for jobs in _batches(queryset):
            results = {result.job_id: result for result in change([job.pk for job in jobs], using=reader(request))}
            user: Any = request.user
            LogEntry.objects.log_actions(
                user_id=user.pk, queryset=[job for job in jobs if results[job.pk].changed], action_flag=CHANGE,
                change_message=done,
            )  # fmt: skip
            not_changed = [result for result in results.values() if not result.changed]
            changed += len(jobs) - len(not_changed)
            asked += sum(result.changed and bool(result.detail) for result in results.values())
            refused += len(not_changed)
            refusals += not_changed[: _REFUSALS_SHOWN - len(refusals)]
        if changed:
            of_them = f" {asked:,} of them run and are asked to end." if asked else ""
            self.message_user(request, f"{_jobs(changed)} {done}.{of_them}", messages.SUCCESS)
        for result in refusals:
            self.message_user(request, f"Job {result.job_id} was not {done}: {result.detail}.", messages.WARNING)
        if refused > len(refusals):
            self.message_user(request, f"{_jobs(refused - len(refusals))} more not {done}.", messages.WARNING)


def _batches(queryset: QuerySet[Job]) -> Iterator[list[Job]]:
    """Yield the selected jobs a thousand at a time, however many there are, by descending id."""
    newest_first = queryset.order_by("-pk").only("task")
    jobs = list(newest_first[:BATCH])
    while jobs:
        yield jobs
        jobs = list(newest_first.filter(pk__lt=jobs[-1].pk)[:BATCH])


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"
