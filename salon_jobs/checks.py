"""Registers system checks: each says what is wrong and what mends it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig, apps
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import OperationalError, connections

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import BootstrapMissing, ConfigurationError


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
    if not apps.is_installed("pgtrigger"):
        errors.append(
            Error("pgtrigger is not installed", hint="add 'pgtrigger' to INSTALLED_APPS", id="salon_jobs.E003")
        )
    if store_model is not None:
        errors += _check_store_model(store_model)
    return errors


@register(Tags.database)
def check_bootstrap(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Check, before ``migrate`` connects, that the role it logs in as exists: bootstrap creates it."""
    if conf.roles is None or conf.database not in (databases or ()):
        return []
    connection = connections[conf.database]
    try:
        connection.ensure_connection()
    except OperationalError as error:
        # A refused login has no SQLSTATE when it fails in the handshake; the server says which role it meant.
        if "authentication failed" not in str(error) and "does not exist" not in str(error):
            raise
        user = connection.settings_dict["USER"]
        hint = (
            "before migrate, run python manage.py bootstrap_roles (or the files in bootstrap_sql with psql) as a "
            "superuser, with the same passwords as in the URLs"
        )
        message = f"{BootstrapMissing.code}: can not log in as {user!r}: {str(error).strip().splitlines()[-1]}"
        return [Error(message, hint=hint, id="salon_jobs.E006")]
    return []


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
