"""Column and index types that Django lacks, and a search by time in tables ordered by id."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from django.core.checks import CheckMessage
from django.core.exceptions import ValidationError
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Max, Min, Q, QuerySet
from django.db.models.functions import Greatest, Least
from django.db.models.lookups import GreaterThanOrEqual, LessThanOrEqual

from salon_jobs.conf.store_key import store_key
from salon_jobs.core.records import StoreId
from salon_jobs.core.units import EARLIEST, LATEST
from salon_jobs.db.instants import from_row

if TYPE_CHECKING:
    DateTimeField = models.DateTimeField[Any, Any]
else:
    DateTimeField = models.DateTimeField

M = TypeVar("M", bound=models.Model)

# For ``Meta``, so that another database causes one message of a check, instead of a Django warning per index.
REQUIRED_FEATURES: Final = (
    "supports_covering_indexes",
    "supports_nulls_distinct_unique_constraints",
    "supports_partial_indexes",
    "supports_table_check_constraints",
)


def finite(*instants: str) -> Q:
    """Return the condition that these columns have no infinite value, which would make every read of the row fail."""
    return Q(**{f"{name}__range": (EARLIEST, LATEST) for name in instants})


def all_finite(*instants: str) -> Q:
    """Return the same for several columns in half the text, which matters where jobs are added one by one."""
    # Neither function sees NULL.
    return Q(GreaterThanOrEqual(Least(*instants), EARLIEST), LessThanOrEqual(Greatest(*instants), LATEST))


class InstantField(DateTimeField):
    """Column of an instant, read as an aware datetime even if ``USE_TZ`` is False."""

    def get_db_converters(self, connection: Any) -> list[Any]:
        """Return a converter that makes naive datetimes aware, if Django's connection returns such."""
        return [] if connection.timezone is not None else [_from_row]

    def deconstruct(self) -> Any:
        """Describe it as Django's own field: migrations need no other."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.DateTimeField", args, kwargs


def _from_row(value: datetime | None, expression: Any, connection: Any) -> datetime | None:
    return None if value is None else from_row(value)


class StoreIdField(models.Field):  # type: ignore[type-arg]
    """Column of a store's key, of the type of ``STORE_MODEL``'s primary key when migrations run."""

    def get_internal_type(self) -> str:
        """Return the type of Django's field with suitable lookups and conversions."""
        return {"uuid": "UUIDField", "bigint": "BigIntegerField", "text": "TextField"}[store_key().sql]

    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        """Return the column's type."""
        return store_key().sql

    def to_python(self, value: Any) -> StoreId | None:
        """Return a store's key. Raises ValidationError for a value that cannot be one."""
        try:
            return None if value is None else store_key().parse(value)
        except ValueError as error:
            raise ValidationError(f"the store {error}") from None

    def get_prep_value(self, value: Any) -> Any:
        """Return the value for the driver."""
        value = super().get_prep_value(value)
        return value if value is None or hasattr(value, "resolve_expression") else self.to_python(value)


class NoStore(models.Expression):
    """The value for no store, which indexes compare like any other."""

    output_field: Any = StoreIdField()

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        """Return it as a literal, so that the planner sees the index's expression."""
        return store_key().none_sql, []


class StoreKeyPattern(models.Expression):
    """Regular expression of the text of a store's key."""

    output_field: Any = cast("Any", models.TextField())

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        """Return it as a literal, so that a constraint shows it."""
        return f"'{store_key().pattern}'", []


class IntegerArrayField(models.Field):  # type: ignore[type-arg]
    """Column of type ``integer[]``. Since Django 6.1, its own array field requires ``django.contrib.postgres``."""

    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        """Return the column's type."""
        return "integer[]"

    def value_to_string(self, obj: models.Model) -> str:
        """Return the text for a fixture: JSON, as of Django's own array field."""
        return json.dumps(self.value_from_object(obj))

    def to_python(self, value: Any) -> Any:
        """Return the list that a fixture's text stands for. Raises ValidationError for any other text."""
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError as error:
            raise ValidationError(f"{self.name} is no list in JSON: {error}") from None


class _NeverNullJSONField(models.JSONField):
    """JSON column that is never NULL, so None is JSON's null, in a fixture too."""

    def get_db_prep_save(self, value: Any, connection: Any) -> Any:
        """Return the value for the driver to write."""
        return super().get_db_prep_save(models.Value(None, self) if value is None else value, connection)


class ReadableJSONField(_NeverNullJSONField):
    """JSON column that can always be read: JSON that Python cannot parse is replaced by a text that says so."""

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        """Return Python values."""
        try:
            return super().from_db_value(value, expression, connection)
        except (ValueError, RecursionError) as error:
            return unreadable(value, error)


class StoredColumn(models.GeneratedField):
    """Generated column that PostgreSQL stores; checked without a connection."""

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Check everything but the server's features, for which Django 6.1 connects to every database."""
        return super().check(**{**kwargs, "databases": None})

    def deconstruct(self) -> Any:
        """Describe it as Django's own field: migrations need no other."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.GeneratedField", args, kwargs


class BloomIndex(models.Index):
    """BRIN index of text columns: vacuum makes a bloom filter of each 32 pages of the table.

    Since Django 6.1, its own class requires ``django.contrib.postgres``.
    """

    def create_sql(self, model: Any, schema_editor: Any, using: str = "", **kwargs: Any) -> Any:
        """Return the statement, with the method and its parameters."""
        statement: Any = super().create_sql(model, schema_editor, using=using or " USING brin", **kwargs)
        statement.parts["extra"] = f" WITH (pages_per_range='32', autosummarize='on'){statement.parts['extra']}"
        return statement


class JSONTextField(_NeverNullJSONField):
    """Column of type ``json`` that keeps JSON as it was written.

    jsonb sorts keys and inserts spaces: a broker would get more bytes than were checked.
    """

    def db_type(self, connection: Any) -> str:
        """Return the column's type."""
        return "json"

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        """Select it as text: if psycopg parsed it, a JSON string could not be told from JSON text."""
        return f"{sql}::text", params

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        """Return Python values; for JSON that Python cannot parse, a text that says so."""
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            return unreadable(value, error)


def unreadable(text: str, error: Exception) -> str:
    """Return the text shown instead of JSON that PostgreSQL accepts but Python cannot parse."""
    return f"<{len(text)} characters of JSON that Python cannot read: {type(error).__name__}>"


# Ids are allocated in the order of time, except by statements that take a while to write their rows.
_MARGIN: Final = timedelta(minutes=10)


def created(rows: QuerySet[M], *, since: datetime | None = None, until: datetime | None = None) -> QuerySet[M]:
    """Filter rows by when they were created, from ``since`` and before ``until``, using their ids."""
    model: Any = rows.model
    everything = model.objects.using(rows.db)
    if since is not None:
        rows = rows.filter(pk__gte=first_id_at(since - _MARGIN, everything), created_at__gte=since)
    if until is not None:
        rows = rows.filter(pk__lt=first_id_at(until + _MARGIN, everything), created_at__lt=until)
    return rows


def first_id_at(instant: datetime, rows: QuerySet[Any]) -> int:
    """Return the id from which rows were created at this instant or later, by bisection.

    Only as accurate as the time that a statement takes to write its rows.
    """
    ends = rows.aggregate(low=Min("pk"), high=Max("pk"))
    low, high = ends["low"] or 0, (ends["high"] or 0) + 1
    while low < high:
        middle = (low + high) // 2
        row = rows.filter(pk__gte=middle).order_by("pk").values_list("pk", "created_at").first()
        if row is None or row[1] >= instant:
            high = middle
        else:
            low = row[0] + 1
    return low
