"""Admin pages for processes, cron ticks and fan-outs."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from salon_jobs.admin.base import ReadOnlyAdmin, ago, badge
from salon_jobs.admin.filters import EntryFilter
from salon_jobs.conf import settings as conf
from salon_jobs.core.units import with_noun
from salon_jobs.jobs.fan_out import fan_out_progress
from salon_jobs.jobs.waiting import served_in_words
from salon_jobs.models import FanOutRecord, Process


class ProcessAdmin(ReadOnlyAdmin):
    """Admin of processes, with their last heartbeat."""

    list_display = ("process", "serves", "running", "heartbeat", "started")
    fields = ("process", "serves", "running", "heartbeat", "started", "supervisor")
    ordering = ("-heartbeat_at",)
    sortable_by = ()

    @admin.display(description="process")
    def process(self, row: Process) -> str:
        return str(row)

    @admin.display(description="queues")
    def serves(self, row: Any) -> str:
        """Show which queues a worker serves, on how many threads."""
        if row.kind != "worker":
            return "-"
        return f"{served_in_words(row.queues)} on {with_noun(row.concurrency, 'thread')}"

    @admin.display(description="running")
    def running(self, row: Process) -> SafeString | str:
        """Link to the jobs that a worker holds."""
        if row.kind != "worker":
            return "-"
        url = reverse("admin:salon_jobs_job_changelist", current_app=self.admin_site.name)
        return format_html('<a href="{}?leased_by__exact={}&amp;state__exact=running">its jobs</a>', url, row.pk)

    @admin.display(description="heartbeat")
    def heartbeat(self, row: Process) -> SafeString:
        """Show the age of the last heartbeat; of a silent process as a problem."""
        now = timezone.now()
        shown = ago(row.heartbeat_at, now)
        is_silent = now - row.heartbeat_at > conf.process_silent_after
        return format_html("{} {}", shown, badge("silent", "bad")) if is_silent else shown

    @admin.display(description="started")
    def started(self, row: Process) -> SafeString:
        return ago(row.started_at, timezone.now())

    @admin.display(description="supervisor")
    def supervisor(self, row: Process) -> SafeString | str:
        """Link to the process that started this one."""
        if row.supervisor_id is None:
            return "-"
        return format_html('<a href="{}">#{}</a>', self.address_of(Process, row.supervisor_id), row.supervisor_id)


class CronTickAdmin(ReadOnlyAdmin):
    """Admin of fired cron ticks, newest first."""

    list_display = ("entry", "tick_at", "fired_at", "job_link")
    list_filter = (EntryFilter,)
    sortable_by = ()


class FanOutAdmin(ReadOnlyAdmin):
    """Admin of fan-outs, newest first; a fan-out's page counts its jobs."""

    part = "tenants"
    list_display = ("id", "task", "label", "tick", "inserted", "kept", "paused", "created_at")
    readonly_fields = ("progress",)
    sortable_by = ()

    def progress(self, record: FanOutRecord) -> SafeString:
        """Count the jobs, with a link to them."""
        jobs = reverse("admin:salon_jobs_job_changelist", current_app=self.admin_site.name)
        return format_html('<a href="{}?fan_out_id__exact={}">{}</a>', jobs, record.pk, fan_out_progress(record.pk))
