"""App configuration: checks, discovery of tasks and cron entries, Sentry, OpenTelemetry."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

from django.apps import AppConfig, apps
from django.core.checks import CheckMessage, Tags, register
from django.core.exceptions import ImproperlyConfigured
from django.db.models.signals import pre_migrate
from django.utils.module_loading import autodiscover_modules, import_string

from salon_jobs.conf import is_given, task_backends
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError


class SalonJobsConfig(AppConfig):
    """App config that discovers every installed app's ``tasks`` and ``crontab`` modules when Django is ready."""

    name = "salon_jobs"
    verbose_name = "Salon jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def import_models(self) -> None:
        """Import the models. Raises ImproperlyConfigured without pgtrigger, which teaches Django their ``triggers``."""
        if not apps.is_installed("pgtrigger"):
            raise ImproperlyConfigured("salon_jobs needs pgtrigger: add 'pgtrigger' to INSTALLED_APPS")
        super().import_models()

    def ready(self) -> None:
        """Register checks and Sentry, then import the task and cron modules."""
        from salon_jobs.tenancy import request  # noqa: PLC0415

        for check, tag in ((_check, "salon_jobs"), (_check_views, Tags.urls), (_check_database, Tags.database)):
            register(check, tag)
        _install_sentry()
        _install_tracing()
        request.watch_requests()
        pre_migrate.connect(_require_roles, sender=self)
        # A worker imports their tasks by name: the backend must be there even if no module has imported it yet.
        for path in task_backends():
            import_string(path)
        autodiscover_modules("tasks")
        autodiscover_modules("crontab")


# What runs in few processes is imported there: modules of checks and migrations take longer to load than the models.
def _check(**options: Any) -> list[CheckMessage]:
    from salon_jobs.checks import check_all  # noqa: PLC0415

    return check_all(**options)


def _check_views(**options: Any) -> list[CheckMessage]:
    from salon_jobs.checks import check_producer_of_views  # noqa: PLC0415

    return check_producer_of_views(**options)


def _check_database(**options: Any) -> list[CheckMessage]:
    from salon_jobs.checks import check_catalogue  # noqa: PLC0415

    return check_catalogue(**options)


def _require_roles(**options: Any) -> None:
    from salon_jobs.process.preflight import require_roles  # noqa: PLC0415

    require_roles(**options)


def _install_sentry() -> None:
    """Report to Sentry if SENTRY says so; by default, if the project has imported the SDK by now."""
    loaded = sys.modules.get("sentry_sdk") is not None
    try:
        wanted = conf.sentry if is_given("SENTRY") else None
    except ConfigurationError:
        return  # reported by the check salon_jobs.E001
    # A missing SDK is reported by the check salon_jobs.E060.
    if loaded if wanted is None else wanted and (loaded or find_spec("sentry_sdk") is not None):
        from salon_jobs.integrations import sentry  # noqa: PLC0415

        sentry.install()


def _install_tracing() -> None:
    """Trace jobs and messages if TRACING is set. Raises ConfigurationError when OpenTelemetry is not installed."""
    try:
        wanted = is_given("TRACING") and conf.tracing
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
