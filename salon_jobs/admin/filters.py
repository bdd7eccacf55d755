"""Filters the list of jobs without reading the whole table for its choices."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from salon_jobs.conf import settings as conf
from salon_jobs.jobs import registry
from salon_jobs.models import Job


class TaskFilter(admin.SimpleListFilter):
    """Offers the registered tasks."""

    title = "task"
    parameter_name = "task"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the task names of this process."""
        return [(name, name) for name in registry.task_names()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        """Filter by task."""
        return queryset.filter(task=self.value()) if self.value() else queryset


class QueueFilter(admin.SimpleListFilter):
    """Offers the queues that tasks name, and any that the newest jobs are in."""

    title = "queue"
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the known queues; jobs with a queue of their own are seen in the newest thousand."""
        declared = {registry.get_task(name).options.queue for name in registry.task_names()}
        newest = Job.objects.using(conf.reader_database).order_by("-id").values_list("queue", flat=True)[:1000]
        return [(name, name) for name in sorted(declared | set(newest))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        """Filter by queue."""
        return queryset.filter(queue=self.value()) if self.value() else queryset


class StoreFilter(admin.SimpleListFilter):
    """Offers the stores of the newest failures, the ones an operator is looking for."""

    title = "store"
    parameter_name = "store"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the stores with the newest ended jobs, and the chosen one."""
        ended = Job.objects.using(conf.reader_database).filter(finished_at__isnull=False).order_by("-finished_at")
        stores = {str(store) for store in ended.values_list("store_id", flat=True)[:500] if store is not None}
        if chosen := self.value():
            stores.add(chosen)
        return [("none", "no store (system)"), *((store, store) for store in sorted(stores)[:50])]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        """Filter by store; a malformed id shows nothing and says so."""
        chosen = self.value()
        if not chosen:
            return queryset
        if chosen == "none":
            return queryset.filter(store_id__isnull=True)
        try:
            return queryset.filter(store_id=UUID(chosen))
        except ValueError:
            messages.error(request, f"{chosen!r} is no store id")
            return queryset.none()
