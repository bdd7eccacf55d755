"""Shows who had messages sent again, and why."""

from __future__ import annotations

from django.contrib import admin

from salon_jobs.admin.base import ReadOnlyAdmin
from salon_jobs.models import Replay


@admin.register(Replay)
class ReplayAdmin(ReadOnlyAdmin):
    """Lists replays, the newest first."""

    list_display = ("id", "requested_at", "requested_by", "reason", "messages")
    ordering = ("-id",)
    sortable_by = ("id",)
