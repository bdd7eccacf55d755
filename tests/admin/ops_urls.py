"""URLs of a project with a second admin site."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from salon_jobs.admin import register


class OpsSite(admin.AdminSite):
    """Second admin site of a project."""


ops = OpsSite(name="ops")
register(ops)
urlpatterns = [path("admin/ops/", ops.urls), path("admin/", admin.site.urls)]
