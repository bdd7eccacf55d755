"""Shows processes and cron ticks."""

from __future__ import annotations

from django.contrib import admin

from salon_jobs.admin.base import ReadOnlyAdmin
from salon_jobs.models import CronTick, Process


@admin.register(Process)
class ProcessAdmin(ReadOnlyAdmin):
    """Lists what runs: workers and schedulers with their last heartbeat."""

    list_display = ("id", "kind", "hostname", "pid", "concurrency", "started_at", "heartbeat_at")
    ordering = ("-heartbeat_at",)


@admin.register(CronTick)
class CronTickAdmin(ReadOnlyAdmin):
    """Lists what cron fired."""

    list_display = ("entry", "tick_at", "fired_at", "job_id")
    list_filter = ("entry",)
    ordering = ("-tick_at",)
