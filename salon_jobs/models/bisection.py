"""Finds the first row of a time in a table whose ids grow with it, without an index on the time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Max, Min, QuerySet

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
