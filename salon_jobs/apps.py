"""Configures the app: checks, the registration of tasks and cron entries, Sentry."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import pre_migrate
from django.utils.module_loading import autodiscover_modules


class SalonJobsConfig(AppConfig):
    """Discovers every installed app's ``tasks`` and ``crontab`` modules when Django is ready."""

    name = "salon_jobs"
    verbose_name = "Salon jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register checks and Sentry, then import the task and cron modules."""
        # They register on import.
        from salon_jobs import checks  # noqa: F401, PLC0415  # pyright: ignore[reportUnusedImport]
        from salon_jobs.integrations import sentry  # noqa: PLC0415
        from salon_jobs.runtime import preflight  # noqa: PLC0415
        from salon_jobs.tenancy import left_open  # noqa: PLC0415

        sentry.install()
        left_open.watch_requests()
        pre_migrate.connect(preflight.require_roles, sender=self)
        autodiscover_modules("tasks")
        autodiscover_modules("crontab")
