"""Adding a store: its row can only be written as that store, so its key comes first."""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.models import Model
from django.db.models.expressions import DatabaseDefault

from salon_jobs.conf.store_key import store_model
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.db.connections import alias_of
from salon_jobs.tenancy.context import tenant_context


def create_store(**fields: Any) -> Any:
    """Create a row of STORE_MODEL from these fields, as the new store, and return it.

    Its key is the one among the fields, that of the model's default, or the next of the database, for all types of
    keys. One transaction, or a savepoint in yours; a surrounding store, or none, continues afterwards. Signals are sent
    within the new store. Raises ConfigurationError without STORE_MODEL, and without a key.
    """
    if (model := store_model()) is None:
        raise ConfigurationError("SALON_JOBS['STORE_MODEL'] is not set: name the model of your stores")
    store = model(**fields)
    field = _key_field(model)
    key = new_key(store, using=alias_of(None))
    if key in (None, ""):
        raise ConfigurationError(f"{model._meta.label} takes its key from nowhere: pass {field.name}=… to create_store")
    setattr(store, field.attname, key)
    with tenant_context(key, switch=True) as context:
        store.save(force_insert=True, using=context.alias)
    return store


def new_key(store: Model, *, using: str) -> Any:
    """Return the key for a row of STORE_MODEL that is to be inserted; None, or empty, if only a person can give one.

    The row may have it, from a default for example. Otherwise it comes from the database's source, ``db_default`` or
    the column's sequence.
    """
    field, connection = _key_field(type(store)), connections[using]
    given = getattr(store, field.attname)
    if given is not None and not isinstance(given, DatabaseDefault):
        return given
    with connection.cursor() as cursor:
        if given is None:
            table = connection.ops.quote_name(field.model._meta.db_table)
            cursor.execute("SELECT nextval(pg_get_serial_sequence(%s, %s))", [table, field.column])
        else:
            query = field.model._base_manager.using(using).query
            statement, parameters = query.get_compiler(using).compile(given.resolve_expression(query))
            cursor.execute(f"SELECT {statement}", parameters)
        [value] = cursor.fetchone()
    return field.to_python(value)


def _key_field(model: type[Model]) -> Any:
    """Return the field that holds the key: where a model inherits it from another's table, the field there."""
    field: Any = model._meta.pk
    while field.is_relation and field.remote_field.parent_link:
        field = field.target_field
    return field
