"""Registers the system check of the live catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import connections
from psycopg import Error as PsycopgError

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError, NotReady, SchemaMissing
from salon_jobs.doctor.connecting import by_alias
from salon_jobs.doctor.examination import examine
from salon_jobs.runtime.preflight import check_schema

_SHOWN: Final = 5


@register(Tags.database)
def check_catalogue(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Compare the live catalogue with the declaration; nothing before the migrations have run, or while some wait."""
    try:
        if conf.on_drift == "ignore" or conf.database not in (databases or ()):
            return []
        if connections[conf.database].vendor != "postgresql":
            return []  # E002
        check_schema(conf.database)
        found = examine(by_alias(conf.database), with_orphans=False)
    except (SchemaMissing, ConfigurationError):
        return []  # told by others
    except (NotReady, PsycopgError) as error:
        return [Warning(f"the live catalogue can not be looked at: {error}", id="salon_jobs.W021")]
    if not found.drifts:
        return []
    shown = "".join(f"\n    {drift}" for drift in found.drifts[:_SHOWN])
    more = f"\n    and {len(found.drifts) - _SHOWN} more" if len(found.drifts) > _SHOWN else ""
    text = f"the database is not as declared:{shown}{more}"
    hint = "python manage.py salon_jobs doctor names each with the statements that mend it"
    if conf.on_drift == "refuse":
        return [Error(text, hint=hint, id="salon_jobs.E020")]
    return [Warning(text, hint=hint, id="salon_jobs.W020")]
