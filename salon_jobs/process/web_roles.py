"""Guard against web processes that connect as a role no runtime may use."""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.backends.signals import connection_created

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import CatalogueDrift, DangerousSetting, ForbiddenRole, NotReady
from salon_jobs.process.preflight import check_drift, check_role, check_settings


def guard_web_roles() -> None:
    """Refuse the migrator, superusers, owners and every role not meant for the web. Call this in wsgi.py or asgi.py.

    Checks the jobs' alias (the web role) and OPERATOR_DATABASE (the operator role) now, or at the first connection if
    the database is not available yet; a refused connection is closed. Raises ForbiddenRole; with one database user (no
    ROLES), only logs a warning about a superuser or BYPASSRLS. Also compares row-level security and policies with the
    declared ones, as ON_DRIFT says; raises CatalogueDrift, and DangerousSetting for row_security = off and the like.
    """
    roles, database = conf.roles, conf.database
    unchecked = {database: roles.web}
    unchecked.setdefault(conf.reader_database, roles.operator)

    def check(connection: Any, **_: Any) -> None:
        if connection.alias not in unchecked:
            return
        try:
            check_role(connection.alias, unchecked[connection.alias])
            check_settings(connection.alias)
            if connection.alias == database:
                check_drift(connection.alias)
        except (ForbiddenRole, DangerousSetting, CatalogueDrift):
            connection.close()
            raise
        unchecked.pop(connection.alias, None)

    connection_created.connect(check, weak=False, dispatch_uid=guard_web_roles)
    for alias in list(unchecked):
        try:
            check(connections[alias])
        except NotReady:
            continue
        finally:
            connections[alias].close()
