"""Shows which relay owns which partition of the aggregates."""

from __future__ import annotations

from django.contrib import admin

from salon_jobs.admin.base import ReadOnlyAdmin
from salon_jobs.models import RelayPartition


@admin.register(RelayPartition)
class PartitionAdmin(ReadOnlyAdmin):
    """Lists the partitions and their owners."""

    list_display = ("partition", "owner", "epoch", "beat")
    ordering = ("partition",)
