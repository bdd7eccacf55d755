"""App configuration: checks, discovery of tasks and cron entries, Sentry, OpenTelemetry."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from django.apps import AppConfig, apps
from django.core.checks import Tags, register
from django.core.exceptions import ImproperlyConfigured
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate, pre_migrate
from django.utils.module_loading import autodiscover_modules, import_string
from django.utils.translation import gettext_lazy as _

from salon_jobs.conf import given_keys, is_eager, is_given, is_strict, task_backends
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError


class SalonJobsConfig(AppConfig):
    """App config that imports every installed app's ``tasks`` and ``crontab`` modules when Django is ready."""

    name = "salon_jobs"
    verbose_name = _("Salon jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def new_listener(self, *args: Any, **options: Any) -> Any:
        """Return a ``Listener`` for lower layers; their processes seldom need one."""
        return import_string("salon_jobs.process.listener.Listener")(*args, **options)

    def import_models(self) -> None:
        """Import the models. Raises ImproperlyConfigured without pgtrigger, which handles their ``triggers``."""
        if not apps.is_installed("pgtrigger"):
            raise ImproperlyConfigured("salon_jobs needs pgtrigger: add 'pgtrigger' to INSTALLED_APPS")
        super().import_models()

    def ready(self) -> None:
        """Register checks and Sentry, then import the task and cron modules.

        Raises ConfigurationError if messages are configured without the producer name that they carry.
        """
        from salon_jobs.db.connections import name_program  # noqa: PLC0415
        from salon_jobs.db.formats import write_readably  # noqa: PLC0415
        from salon_jobs.db.read_only import leave_read_only_servers  # noqa: PLC0415

        keys = given_keys("OUTBOX")
        if keys - {"SOURCES"} and "PRODUCER" not in keys:  # consumers need only these
            from salon_jobs.conf.sections import OutboxSettings  # noqa: PLC0415

            OutboxSettings().require_producer()
        register(_late("checks.check_all"), "salon_jobs")
        register(_late("checks.check_database"), Tags.database)
        register(_late("checks.caches.check_caches"), Tags.urls)
        _install_sentry()
        _install_tracing()
        write_readably()
        name_program()
        leave_read_only_servers()
        if is_given("STORE_MODEL"):
            from salon_jobs.tenancy.request import watch_requests  # noqa: PLC0415

            watch_requests()
            connection_created.connect(_require_store, dispatch_uid="salon_jobs.strict")
            _late("access.schema_editor.install")()
        _install_eager()
        pre_migrate.connect(_late("process.preflight.require_roles"), sender=self, weak=False)
        install = _late("access.operations.unmigrated.install_without_migrations")
        post_migrate.connect(install, sender=self, weak=False)
        # A worker imports their tasks by name, so the backends must be loaded even if no module has imported them.
        for path in task_backends():
            import_string(path)
        autodiscover_modules("tasks")
        autodiscover_modules("crontab")


def _late(path: str) -> Callable[..., Any]:
    """Return a function that imports another one of this package when it is called, as few processes do.

    The modules of checks and migrations take longer to load than the models.
    """

    def call(**options: Any) -> Any:
        return import_string(f"salon_jobs.{path}")(**options)

    return call


def _require_store(connection: BaseDatabaseWrapper, **options: Any) -> None:
    """Make a new connection refuse statements on stores' tables outside a store, where STRICT applies."""
    if connection.vendor == "postgresql" and is_strict():
        _late("access.strict.refuse_without_store")(connection=connection)


def _install_eager() -> None:
    """Run jobs in the process that enqueues them, where EAGER applies."""
    try:
        if not is_eager():
            return
    except ConfigurationError:
        return  # reported by the check salon_jobs.E001
    from salon_jobs.jobs.enqueue import wake_ups  # noqa: PLC0415

    wake_ups.on_commit = lambda alias: _late("testing.eager.run_due_jobs")(using=alias)


def _install_sentry() -> None:
    """Report to Sentry if SENTRY is True, or by default if the project has already imported the SDK."""
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
    """Trace jobs and messages if TRACING is set. Raises ConfigurationError if OpenTelemetry is not installed."""
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
