"""Totals of a business day's sales."""

from __future__ import annotations

from datetime import date
from typing import Any, Final, Literal
from uuid import UUID, uuid4

from django.db import connections

from project.salon.business_day import business_day_bounds
from project.salon.models.register import DailySales
from salon_jobs import fan_out, store_task, task

# One statement, so that the total and the count refer to the same instant; the last line makes a repetition change
# nothing. A day without a sale gives zeros, which also corrects a total whose sales were removed.
_AGGREGATE: Final = """
    INSERT INTO daily_sales AS known (id, store_id, business_date, total, count)
    SELECT %(id)s, %(store_id)s, %(day)s, coalesce(sum(amount), 0), count(*)
    FROM sale
    WHERE store_id = %(store_id)s AND sold_at >= %(start)s AND sold_at < %(end)s
    ON CONFLICT (store_id, business_date) DO UPDATE SET total = excluded.total, count = excluded.count
    WHERE (known.total, known.count) IS DISTINCT FROM (excluded.total, excluded.count)
"""


@task(name="aggregate-daily-sales", max_attempts=3)
def aggregate_daily_sales(target_date: date, reason: Literal["cron"]) -> None:
    """Enqueue one job per store for the business day ``target_date``. Idempotent by store and day."""
    fan_out(aggregate_daily_sales_for_store, target_date=target_date)


@store_task(
    name="aggregate-daily-sales-for-store",
    max_attempts=25,
    job_key="aggregate_daily_sales:{store_id}:{target_date}",
    job_key_mode="preserve_run_at",
)
def aggregate_daily_sales_for_store(store_id: UUID, target_date: date) -> None:
    """Write the store's total of the business day ``target_date`` (JST). Idempotent: it is recomputed each time."""
    start, end = business_day_bounds(target_date)
    parameters: dict[str, Any] = {"id": uuid4(), "store_id": store_id, "day": target_date, "start": start, "end": end}
    with connections[DailySales.objects.db].cursor() as cursor:
        cursor.execute(_AGGREGATE, parameters)
