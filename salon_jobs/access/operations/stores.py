"""Data migrations of tables with stores' rows: one store at a time, and an error for a statement without a store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

from django.db import connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.backends.signals import connection_created
from django.db.migrations import RunPython
from django.db.migrations.state import ProjectState, StateApps

from salon_jobs.access.declared_objects import identifier
from salon_jobs.access.policies import DEMAND_GUC, NO_STORE
from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.core.events import log_event
from salon_jobs.core.records import StoreId
from salon_jobs.db.connections import can_run, plain_cursor
from salon_jobs.tenancy import guc
from salon_jobs.tenancy.context import tenant_context


class RunForEachStore(RunPython):
    """Operation that calls ``code(apps, schema_editor, store_id)`` in the tenant context of each store, ordered by id.

    Each call sees and changes only that store's rows, even as the migrator. In an ordinary migration all calls share
    one transaction. With ``atomic = False`` each store has its own; after a failure, with a note that names the store,
    ``migrate`` begins with the first store again, so ``code`` must skip finished work. ``reverse_code`` is called the
    same way, ``RunForEachStore.noop`` does nothing; without it the migration cannot be reversed.

    The fan-out function lists the stores: make the migration depend on ("salon_jobs", "0003_fan_out"). Raises
    ConfigurationError without it.
    """

    def __init__(
        self,
        code: Callable[[Any, Any, Any], object],
        reverse_code: Callable[[Any, Any, Any], object] | None = None,
        *,
        hints: Mapping[str, Any] | None = None,
        elidable: bool = False,
    ) -> None:
        self.each, self.reverse_each = code, reverse_code
        # They differ from RunPython's by a third argument, but it calls neither: both directions are overridden.
        plain: tuple[Any, Any] = (code, reverse_code)
        super().__init__(*plain, hints=dict(hints or {}), elidable=elidable)

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        from_state.clear_delayed_apps_cache()
        self._run(self.each, app_label, schema_editor, from_state.apps)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        if self.reverse_each is None:
            raise NotImplementedError("this operation has no reverse_code")
        self._run(self.reverse_each, app_label, schema_editor, from_state.apps)

    def describe(self) -> str:
        return f"Run {getattr(self.each, '__name__', 'code')} for each store"

    @staticmethod
    def noop(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor, store_id: StoreId | None = None) -> None:
        """Do nothing, in one direction."""

    def _run(
        self,
        code: Callable[[Any, Any, Any], object],
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        apps: StateApps,
    ) -> None:
        connection = schema_editor.connection
        if code is RunForEachStore.noop or not router.allow_migrate(connection.alias, app_label, **self.hints):
            return
        stores = list_stores(connection)
        for done, store_id in enumerate(stores, start=1):
            try:
                with tenant_context(store_id, using=connection.alias):
                    code(apps, schema_editor, store_id)
            except Exception as error:
                error.add_note(f"in store {store_id}, number {done} of {len(stores)}")
                raise
            log_event(logging.INFO, events.STORE_MIGRATED, store_id=store_id, done=done, stores=len(stores))


def list_stores(connection: BaseDatabaseWrapper) -> list[StoreId]:
    """Return the ids of all stores from the fan-out function, called as its owner. Role: migrator."""
    if conf.store_model is None:
        raise ConfigurationError("RunForEachStore needs SALON_JOBS['STORE_MODEL']: set it to the model of your stores")
    function = f"{identifier(*conf.fan_out_function.split('.'))}()"
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        cursor.execute("SELECT to_regprocedure(%s), current_setting('role')", [function])
        procedure, role = cursor.fetchone()
        if procedure is None:
            raise ConfigurationError(
                f"RunForEachStore lists the stores with {conf.fan_out_function}, which does not exist yet: make the "
                'migration depend on ("salon_jobs", "0003_fan_out")'
            )
        cursor.execute("SELECT set_config('role', %s, true)", [conf.roles.fan_out_owner or role])
        cursor.execute(f"SELECT store_id FROM {function}")
        stores = [store_id for (store_id,) in cursor.fetchall()]
        cursor.execute("SELECT set_config('role', %s, true)", [role])
    return stores


@contextmanager
def require_store(alias: str) -> Generator[None]:
    """Inside, make statements on this alias that reach stores' rows fail unless a store is set.

    Sets ``DEMAND_GUC`` on the open session and on sessions opened inside. Behind a pooler it sets nothing, since the
    setting would remain on a session for its next user.
    """

    def demand(connection: BaseDatabaseWrapper, **_: Any) -> None:
        if connection.alias == alias:
            _set(connection, NO_STORE)

    connection = connections[alias]
    connection_created.connect(demand)
    try:
        if connection.connection is not None:
            _set(connection, NO_STORE)
        yield
    finally:
        connection_created.disconnect(demand)
        if can_run(connection):  # the end of an aborted transaction reverts it, as does that of the connection
            _set(connection, "")


def _set(connection: BaseDatabaseWrapper, value: str) -> None:
    raw: Any = connection.connection
    with connection.wrap_database_errors:
        plain_cursor(connection).execute(guc.SET_SESSION, (raw.info.backend_pid, DEMAND_GUC, value))
