"""No instant gets into the job table that a worker could not read: it would stop all of them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import psycopg
import pytest

from salon_jobs import fan_out
from salon_jobs.core.errors import OptionInvalid
from salon_jobs.core.units import EARLIEST, LATEST
from tests import tasks
from tests.settings import url_for
from tests.support import claim

BEFORE_THE_CALENDAR = datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))
AFTER_THE_CALENDAR = datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))


@pytest.mark.parametrize("field", ["run_at", "expires_at"])
@pytest.mark.parametrize("instant", [BEFORE_THE_CALENDAR, AFTER_THE_CALENDAR])
def test_option_beyond_calendar_is_refused(stores: list[UUID], field: str, instant: datetime) -> None:
    options: dict[str, Any] = {field: instant}
    with pytest.raises(OptionInvalid, match=f"{field} must lie between"):
        tasks.system.using(**options)
    with pytest.raises(OptionInvalid, match=f"{field} must lie between"):
        fan_out(tasks.in_store.using(**options))


@pytest.mark.parametrize("argument", ["run_at", "expires_at", "tick"])
def test_sql_adds_no_unreadable_job(process_id: int, argument: str) -> None:
    with psycopg.connect(url_for("app"), autocommit=True) as web:
        for value in ("-infinity", "infinity", "0044-03-15 BC", "20000-01-01", "9999-12-31", "0001-01-01"):
            with pytest.raises(psycopg.errors.CheckViolation, match="salon_jobs_job_instants"):
                web.execute(f"SELECT salon_jobs_add_job('test-system', {argument} => '{value}')".encode())
        web.execute("SELECT salon_jobs_add_job('test-system')")
    assert len(claim(process_id)) == 1


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Etc/GMT+12", "Asia/Tokyo"])
def test_first_and_last_instant_in_time_zones(database: None, zone: str) -> None:
    tasks.system.using(run_at=EARLIEST, expires_at=LATEST).enqueue()
    with psycopg.connect(url_for("worker_runtime"), options=f"-c timezone={zone}") as reader:
        assert reader.execute("SELECT run_at, expires_at FROM salon_jobs_job").fetchall() == [(EARLIEST, LATEST)]
