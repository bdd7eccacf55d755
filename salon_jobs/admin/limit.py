"""Lets operators pause and limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from salon_jobs.conf import settings as conf
from salon_jobs.models import Limit

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Limit]
else:
    ModelAdmin = admin.ModelAdmin  # generic for type checkers alone


@admin.register(Limit)
class LimitAdmin(ModelAdmin):
    """Edits the rules through the operator's database role; workers follow within a second."""

    list_display = ("kind", "name", "paused", "max_concurrency", "rate")
    list_filter = ("kind", "paused")
    search_fields = ("name",)
    fields = ("kind", "name", "paused", "max_concurrency", "rate")
    ordering = ("kind", "name")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Limit]:
        """Return the rules."""
        return super().get_queryset(request).using(conf.reader_database)

    def save_model(self, request: HttpRequest, obj: Limit, form: Any, change: bool) -> None:
        """Save as the operator."""
        obj.save(using=conf.reader_database)

    def delete_model(self, request: HttpRequest, obj: Limit) -> None:
        """Delete as the operator."""
        obj.delete(using=conf.reader_database)
