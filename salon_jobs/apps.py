"""App configuration: checks, discovery of tasks and cron entries, Sentry, OpenTelemetry."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from django.apps import AppConfig
from django.db.models.signals import pre_migrate
from django.utils.module_loading import autodiscover_modules

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError


class SalonJobsConfig(AppConfig):
    """App config that discovers every installed app's ``tasks`` and ``crontab`` modules when Django is ready."""

    name = "salon_jobs"
    verbose_name = "Salon jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register checks and Sentry, then import the task and cron modules."""
        # They register on import.
        from salon_jobs import checks  # noqa: F401, PLC0415  # pyright: ignore[reportUnusedImport]
        from salon_jobs.process import preflight  # noqa: PLC0415
        from salon_jobs.tenancy import request  # noqa: PLC0415

        _install_sentry()
        _install_tracing()
        request.watch_requests()
        pre_migrate.connect(preflight.require_roles, sender=self)
        autodiscover_modules("tasks")
        autodiscover_modules("crontab")


def _install_sentry() -> None:
    """Report to Sentry if SENTRY says so; by default, if the project has imported the SDK by now."""
    try:
        wanted = conf.sentry
    except ConfigurationError:
        return  # reported by the check salon_jobs.E001
    loaded = sys.modules.get("sentry_sdk") is not None
    # A missing SDK is reported by the check salon_jobs.E060.
    if loaded if wanted is None else wanted and (loaded or find_spec("sentry_sdk") is not None):
        from salon_jobs.integrations import sentry  # noqa: PLC0415

        sentry.install()


def _install_tracing() -> None:
    """Trace jobs and messages if TRACING is set. Raises ConfigurationError when OpenTelemetry is not installed."""
    try:
        wanted = conf.tracing
    except ConfigurationError:
        return  # reported by the check salon_jobs.E001
    if not wanted:
        return
    try:
        from salon_jobs.integrations import opentelemetry  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            "SALON_JOBS['TRACING'] needs OpenTelemetry: pip install 'salon-jobs[opentelemetry]'"
        ) from error
    opentelemetry.install()
