"""Tests that clients who leave in the midst of a body undo no write of others on the same pool.

Run with ``-s``, it prints what each scene did.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from tests.e2e.streams.clients import site, visit
from tests.settings import url_for
from tests.support import change, seen

# Coprime to the number of clients, so that each sends everything.
STORES = ["/stream/", "/write/", "/stream/async/", "/write/async/", "/stream/sync-body/"]
FAILING = [*STORES, "/stream/failing/", "/stream/stopped/"]


@pytest.mark.parametrize(
    ("kind", "resets", "paths", "pool"),
    [
        ("stores", False, FAILING, 1),
        ("stores", True, STORES, 3),
        ("no stores", False, STORES, 1),
        pytest.param("stores", False, FAILING, 3, marks=pytest.mark.slow),
        pytest.param("stores", True, STORES, 1, marks=pytest.mark.slow),
        pytest.param("no stores", False, STORES, 3, marks=pytest.mark.slow),
        pytest.param("plain Django", False, STORES, 1, marks=pytest.mark.slow),
    ],
)
def test_answered_writes_are_there(
    stores: list[UUID], tmp_path: Path, kind: str, resets: bool, paths: list[str], pool: int
) -> None:
    change(
        "INSERT INTO customer (id, store_id, name, email)"
        " SELECT gen_random_uuid(), %s, 'canary ' || n, '' FROM generate_series(1, 400) n",
        stores[0],
    )
    # Without a store the web role sees no rows.
    url = url_for("app" if kind == "stores" else None)
    with site(kind, pool, url, tmp_path / "log", resets=resets) as port:
        tally = visit(port, stores[0], paths, rounds=10)
    there = {name for (name,) in seen("SELECT name FROM customer WHERE name LIKE 'written %%'")}
    missing = len(tally.written - there)
    print(  # noqa: T201 - the table of the documentation
        f"{kind}{', pool that resets' if resets else ''}, pool of {pool}: {tally.requests} requests,"
        f" {tally.unanswered} unanswered, {tally.refused} refused,"
        f" {len(tally.written)} writes answered 200, {missing} of them not there"
    )
    if kind != "plain Django":
        assert (tally.unanswered, tally.refused, missing) == (0, 0, 0), (tmp_path / "log").read_text()[-4000:]
