"""Admin pages for processes, cron ticks and fan-outs."""

from __future__ import annotations

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from salon_jobs.admin.base import ReadOnlyAdmin
from salon_jobs.admin.filters import EntryFilter
from salon_jobs.jobs.fan_out import fan_out_progress
from salon_jobs.models import FanOutRecord


class ProcessAdmin(ReadOnlyAdmin):
    """Admin of processes, with their last heartbeat."""

    list_display = ("id", "kind", "hostname", "pid", "supervisor_id", "concurrency", "started_at", "heartbeat_at")
    ordering = ("-heartbeat_at",)


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
