"""Shows cron ticks."""

from __future__ import annotations

from django.contrib import admin

from salon_jobs.admin.base import ReadOnlyAdmin
from salon_jobs.admin.filters import EntryFilter
from salon_jobs.models import CronTick


@admin.register(CronTick)
class CronTickAdmin(ReadOnlyAdmin):
    """Lists what cron fired, the newest first."""

    list_display = ("entry", "tick_at", "fired_at", "job_link")
    list_filter = (EntryFilter,)
    ordering = ("-id",)
    sortable_by = ()
