"""Column types Django lacks, and a search by time in tables ordered by id."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import models
from django.db.models import Max, Min, QuerySet


class ReadableJSONField(models.JSONField):
    """Is a JSON column that can be read whatever is in it: of JSON that Python does not take, a text that says so."""

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        """Return Python values."""
        try:
            return super().from_db_value(value, expression, connection)
        except (ValueError, RecursionError) as error:
            return unreadable(value, error)


class JSONTextField(models.JSONField):
    """Holds JSON as the text that was written, in a column of type ``json``.

    jsonb sorts keys and puts blanks between them: what a broker gets would be longer than what was checked.
    """

    def db_type(self, connection: Any) -> str:
        """Return the column's type."""
        return "json"

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        """Read it as text: psycopg would parse it, and a string could not be told from JSON any more."""
        return f"{sql}::text", params

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        """Return Python values; of JSON that PostgreSQL takes and Python does not, a text that says so."""
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            return unreadable(value, error)


def unreadable(text: str, error: Exception) -> str:
    """Return what is shown in the place of JSON that PostgreSQL takes and Python does not."""
    return f"<{len(text)} characters of JSON that Python can not read: {type(error).__name__}>"


# Ids are given in the order of time, but for statements that write rows for longer than a moment.
MARGIN: Final = timedelta(minutes=10)


def first_id_at(instant: datetime, rows: QuerySet[Any]) -> int:
    """Return the id from which rows were created at this instant or later, by bisection.

    Exact to the time that one statement took to write rows; ask for ``MARGIN`` earlier, and compare the times.
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
