"""URLs of a project with a second admin site."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path


class OpsSite(admin.AdminSite):
    """Second admin site of a project."""


ops = OpsSite(name="ops")
for model, model_admin in admin.site._registry.items():
    if model._meta.app_label == "salon_jobs":
        ops.register(model, type(model_admin))
urlpatterns = [path("admin/ops/", ops.urls), path("admin/", admin.site.urls)]
