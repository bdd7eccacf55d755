"""URLs of a project whose own admin site is the only one, with a page of its own for jobs."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.urls import path

from salon_jobs.admin import JobAdmin, register
from salon_jobs.models import Job


class OurJobs(JobAdmin):
    """Jobs as this project shows them."""

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        return super().changelist_view(request, {**(extra_context or {}), "title": "Our jobs"})


own = admin.AdminSite(name="back-office")
own.register(Job, OurJobs)
register(own)
register(own)
urlpatterns = [path("admin/", own.urls)]
