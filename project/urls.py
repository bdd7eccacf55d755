"""Routes Django's admin, where an operator sees the jobs, and the health of the web process."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path
from django.views.generic import RedirectView

from salon_jobs.health.checks import HealthView, JobTables

urlpatterns = [
    path("admin/", admin.site.urls),
    path("health/", HealthView.as_view(checks=[JobTables])),
    path("", RedirectView.as_view(pattern_name="admin:index")),
]
