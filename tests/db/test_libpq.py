"""Exchanges below psycopg's cursors end with the errors of the server, and know when their connection is gone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors

from salon_jobs.db import libpq
from tests.settings import url_for


@pytest.fixture
def raw(database: None) -> Iterator[Any]:
    with psycopg.connect(url_for("worker_runtime")) as opened:
        yield opened


def test_results_end_with_first_error(raw: Any) -> None:
    results = libpq.results_of(raw, "SELECT 1; SELECT 1 / 0; SELECT 2")
    assert libpq.converted(raw, results[0]) == [(1,)]
    assert len(results) == 2
    with pytest.raises(errors.DivisionByZero):
        libpq.succeeded(raw, results[1])
    raw.rollback()
    libpq.send(raw, "SELECT 1; SELECT 3")
    assert libpq.converted(raw, libpq.last_answer(raw)) == [(3,)]


def test_exchange_notices_lost_connection(raw: Any) -> None:
    with psycopg.connect(url_for(None), autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s)", [raw.info.backend_pid])
    for _ in range(2):  # when it is cut, and once it is closed
        with pytest.raises(psycopg.OperationalError):
            libpq.exchange(raw, raw.pgconn.exec_, b"SELECT pg_sleep(10)")
        assert raw.closed
