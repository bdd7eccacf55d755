"""Shows jobs with their payload and the traceback of every attempt; retries and cancels in bulk."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from salon_jobs.admin.base import ReadOnlyAdmin, may
from salon_jobs.admin.filters import QueueFilter, StoreFilter, TaskFilter
from salon_jobs.conf import settings as conf
from salon_jobs.jobs import operate
from salon_jobs.jobs.operate import Operated
from salon_jobs.models import Job, JobError

_REFUSALS_SHOWN = 5


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    """Lists jobs by state, task, queue and store; a job's page shows everything known about it."""

    list_display = ("id", "task", "state", "attempt_count", "store_id", "queue", "run_at", "finished_at", "reason")
    list_filter = ("state", TaskFilter, QueueFilter, StoreFilter)
    search_fields = ("id__exact", "job_key__exact", "store_id__exact")
    search_help_text = "A job's id, its key, or its store's id, in full"
    ordering = ("-id",)
    list_per_page = 50
    actions = ("retry", "cancel")
    fieldsets = (
        (None, {"fields": ("task", "state", "reason", "store_id", "queue", "priority")}),
        ("Runs", {"fields": ("attempt_count", "rescues", "errors")}),
        ("Payload", {"fields": ("shown_payload", "job_key")}),
        ("Times", {"fields": ("created_at", "run_at", "started_at", "finished_at", "expires_at", "tick")}),
        ("Lease", {"fields": ("leased_by", "lease"), "classes": ("collapse",)}),
    )

    def get_search_results(self, request: HttpRequest, queryset: QuerySet[Job], search_term: str) -> tuple[Any, bool]:
        """Search exactly, by whichever of id, store and key the term can be: each is served by an index."""
        term = search_term.strip()
        if not term:
            return queryset, False
        if term.isdecimal() and int(term) < 2**63:
            return queryset.filter(pk=int(term)) | queryset.filter(job_key=term), False
        try:
            return queryset.filter(store_id=UUID(term)) | queryset.filter(job_key=term), False
        except ValueError:
            return queryset.filter(job_key=term), False

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
        errors = JobError.objects.using(conf.reader_database).filter(job_id=job.pk).order_by("-id")[:50]
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
        self._operate(request, queryset, operate.retry, "retried")

    @admin.action(description="Cancel selected jobs", permissions=["cancel"])
    def cancel(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        """Cancel the selected queued or failed jobs."""
        self._operate(request, queryset, operate.cancel, "cancelled")

    def _operate(
        self, request: HttpRequest, queryset: QuerySet[Job], change: Callable[..., list[Operated]], done: str
    ) -> None:
        jobs = list(queryset.order_by("id"))
        results = change([job.pk for job in jobs], using=conf.reader_database)
        changed = {result.job_id for result in results if result.changed}
        user: Any = request.user
        LogEntry.objects.log_actions(
            user_id=user.pk, queryset=[job for job in jobs if job.pk in changed], action_flag=CHANGE,
            change_message=done,
        )  # fmt: skip
        if changed:
            self.message_user(request, f"{len(changed)} jobs {done}.", messages.SUCCESS)
        refused = [result for result in results if not result.changed]
        for result in refused[:_REFUSALS_SHOWN]:
            self.message_user(request, f"Job {result.job_id} was not {done}: {result.detail}.", messages.WARNING)
        if len(refused) > _REFUSALS_SHOWN:
            self.message_user(request, f"{len(refused) - _REFUSALS_SHOWN} more were not {done}.", messages.WARNING)
