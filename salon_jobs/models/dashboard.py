"""Declares what the dashboard is to Django: a page of the admin, with a permission to see it."""

from __future__ import annotations

from salon_jobs.models.process import Process


class Dashboard(Process):
    """Stands for the dashboard: no rows of its own, one permission, ``view_dashboard``."""

    class Meta:  # pyright: ignore[reportIncompatibleVariableOverride] - Django joins them
        proxy = True
        default_permissions = ("view",)
        verbose_name = "dashboard"
        verbose_name_plural = "dashboard"
