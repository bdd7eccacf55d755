"""Registers the system check of SALON_JOBS and of what it needs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.apps import AppConfig, apps
from django.core.checks import CheckMessage, Error, Warning, register
from django.core.management import get_commands
from django.db import connections
from psycopg import IsolationLevel

from salon_jobs.conf import settings as conf
from salon_jobs.conf import uses_time_zones
from salon_jobs.core.errors import ConfigurationError

_LONGEST_PICK_UP = timedelta(seconds=5)


@register("salon_jobs")
def check_settings(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """Check SALON_JOBS, the database's vendor, the store model and the apps this one needs."""
    try:
        store_model, database = conf.store_model, conf.database
    except ConfigurationError as error:
        return [Error(str(error), id="salon_jobs.E001", hint="mend the setting SALON_JOBS")]
    errors: list[CheckMessage] = []
    if connections[database].vendor != "postgresql":
        errors.append(Error(f"the database {database!r} is not PostgreSQL", id="salon_jobs.E002"))
    else:
        errors += _check_isolation(database)
    if not uses_time_zones():
        hint = "set USE_TZ = True: jobs are due at instants, and those that it leaves without a zone compare with none"
        errors.append(Error("USE_TZ is False", hint=hint, id="salon_jobs.E007"))
    if not apps.is_installed("pgtrigger"):
        errors.append(
            Error("pgtrigger is not installed", hint="add 'pgtrigger' to INSTALLED_APPS", id="salon_jobs.E003")
        )
    if conf.poll_interval > _LONGEST_PICK_UP:
        errors.append(_slow_polling())
    if conf.roles is not None:
        errors += _check_migrate(get_commands()["migrate"])
    if store_model is not None:
        errors += _check_store_model(store_model)
    return errors


def _check_isolation(database: str) -> list[CheckMessage]:
    level = connections[database].settings_dict.get("OPTIONS", {}).get("isolation_level")
    # READ UNCOMMITTED is READ COMMITTED in PostgreSQL.
    if level in (None, IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED):
        return []
    hint = (
        "take isolation_level out of the alias's OPTIONS, and give what needs it an alias of its own: claims, enqueues"
        " with keys and limits go on with what others committed while they waited, which fails under a snapshot"
    )
    text = f"OPTIONS['isolation_level'] of the database {database!r} is not READ COMMITTED"
    return [Error(text, hint=hint, id="salon_jobs.E006")]


def _slow_polling() -> CheckMessage:
    hint = (
        "set it to 5 s or less: a job whose wake-up is lost (no listener, a pooler, a lost connection) waits until the"
        " next poll"
    )
    return Warning("SALON_JOBS['POLL_INTERVAL'] is more than 5 s", hint=hint, id="salon_jobs.W002")


def _check_migrate(winner: object) -> list[CheckMessage]:
    if winner == "salon_jobs":
        return []
    hint = (
        "put 'salon_jobs' before it in INSTALLED_APPS; or, when its migrate is needed, silence this check: a login that"
        " is refused before bootstrap_roles was run is then told in Django's words"
    )
    text = f"the command migrate is that of {winner!r}, not that of salon_jobs"
    return [Warning(text, hint=hint, id="salon_jobs.W001")]


def _check_store_model(name: str) -> list[CheckMessage]:
    try:
        model = apps.get_model(name)
    except LookupError:
        hint = "name an installed model as 'app_label.Model'"
        return [Error(f"SALON_JOBS['STORE_MODEL'] {name!r} does not exist", hint=hint, id="salon_jobs.E004")]
    if model._meta.pk.get_internal_type() != "UUIDField":
        hint = "give the store model id = models.UUIDField(primary_key=True, default=uuid.uuid4)"
        return [Error(f"the primary key of {name} is not a UUIDField", hint=hint, id="salon_jobs.E005")]
    return []
