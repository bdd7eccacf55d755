"""Shows processes."""

from __future__ import annotations

from django.contrib import admin

from salon_jobs.admin.base import ReadOnlyAdmin
from salon_jobs.models import Process


@admin.register(Process)
class ProcessAdmin(ReadOnlyAdmin):
    """Lists what runs, with the last heartbeat."""

    list_display = ("id", "kind", "hostname", "pid", "supervisor_id", "concurrency", "started_at", "heartbeat_at")
    ordering = ("-heartbeat_at",)
