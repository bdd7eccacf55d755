"""Tests that the demo's rows lie on both sides of every cutoff, to the second, in every store."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from project.salon.business_day import business_day_bounds, jst_date
from project.salon.demo_data import STORES, DemoData, make_demo_data
from project.salon.demo_instants import DemoInstants

NOW = datetime(2026, 5, 6, 3, 14, 15, 926535, tzinfo=UTC)
INSTANTS = DemoInstants.at(NOW)
SECOND = timedelta(seconds=1)


@pytest.fixture(scope="module")
def data() -> DemoData:
    return make_demo_data(INSTANTS)


def _by_store(data: DemoData, table: str, value: Callable[[dict[str, Any]], Any]) -> dict[UUID, set[Any]]:
    values: defaultdict[UUID, set[Any]] = defaultdict(set)
    for record in data.records(table):
        values[record["store_id"]].add(value(record))
    return values


def test_there_are_a_hundred_stores_and_about_fifty_thousand_rows(data: DemoData) -> None:
    assert len(data.rows["store"]) == STORES == 100
    assert 48_000 <= len(data) <= 55_000
    assert len({record["name"] for record in data.records("store")}) == STORES


def test_the_same_seed_gives_the_same_rows(data: DemoData) -> None:
    assert make_demo_data(INSTANTS).rows == data.rows
    assert make_demo_data(INSTANTS, seed=1).rows != data.rows


@pytest.mark.parametrize(
    ("table", "column", "cutoff"),
    [
        ("customer_note", "deleted_at", INSTANTS.notes_tick - timedelta(days=7)),
        ("customer", "deleted_at", INSTANTS.customers_tick - timedelta(days=90)),
        ("operator_invitation", "expires_at", INSTANTS.operators_tick),
        ("sale", "sold_at", business_day_bounds(INSTANTS.target_date)[1]),
    ],
)
def test_every_store_has_rows_on_both_sides_of_the_cutoff(
    data: DemoData, table: str, column: str, cutoff: datetime
) -> None:
    values = _by_store(data, table, lambda record: record[column])

    assert len(values) == STORES
    for store, instants in values.items():
        if table != "sale":
            assert {cutoff - SECOND, cutoff, cutoff + SECOND} <= instants
        else:  # a closed store has no sale in the day's last second
            assert cutoff in instants
            assert cutoff - SECOND in instants or not any(jst_date(at) == INSTANTS.target_date for at in instants), (
                store
            )


def test_sessions_lie_on_both_sides_of_their_cutoff(data: DemoData) -> None:
    expiries = Counter(record["expires_at"] for record in data.records("operator_session"))

    assert all(expiries[INSTANTS.operators_tick + offset] for offset in (-SECOND, timedelta(0), SECOND))


def test_tentative_reservations_lapse_second_by_second_during_the_run(data: DemoData) -> None:
    waiting: defaultdict[UUID, set[datetime]] = defaultdict(set)
    for record in data.records("reservation"):
        if record["status"] == "tentative":
            waiting[record["store_id"]].add(record["expires_at"])

    assert len(waiting) == STORES
    assert all({INSTANTS.loaded_at - SECOND, INSTANTS.loaded_at} <= instants for instants in waiting.values())
    every_second = {INSTANTS.loaded_at + timedelta(seconds=n) for n in range(1, 91)}
    assert sum(every_second <= instants for instants in waiting.values()) == STORES // 10


def test_a_business_day_has_sales_on_two_utc_dates(data: DemoData) -> None:
    days: defaultdict[UUID, set[Any]] = defaultdict(set)
    for record in data.records("sale"):
        if jst_date(record["sold_at"]) == INSTANTS.target_date:
            days[record["store_id"]].add(record["sold_at"].date())

    assert len(days) == STORES * 9 // 10  # the others were closed that day
    assert all(len(dates) == 2 for dates in days.values())


def test_references_stay_within_a_store(data: DemoData) -> None:
    home = {record["id"]: record["store_id"] for record in data.records("customer")}

    for table in ("customer_note", "reservation"):
        assert all(home[record["customer_id"]] == record["store_id"] for record in data.records(table))
