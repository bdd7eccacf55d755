"""Clients that leave in the midst of a body, and what becomes of the writes of others on the same pool.

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


@pytest.mark.parametrize("pool", [1, 3])
@pytest.mark.parametrize(
    ("kind", "resets", "paths"),
    [
        ("stores", False, FAILING),
        ("stores", True, STORES),
        ("no stores", False, STORES),
        pytest.param("plain Django", False, STORES, marks=pytest.mark.slow),
    ],
    ids=["stores", "stores, pool that resets", "no stores", "plain Django"],
)
def test_what_was_answered_is_there(
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
        tally = visit(port, stores[0], paths, rounds=14)
    there = {name for (name,) in seen("SELECT name FROM customer WHERE name LIKE 'written %%'")}
    missing = len(tally.written - there)
    print(  # noqa: T201 - the table of the documentation
        f"{kind}{', pool that resets' if resets else ''}, pool of {pool}: {tally.requests} requests,"
        f" {tally.unanswered} unanswered, {tally.refused} refused,"
        f" {len(tally.written)} writes answered 200, {missing} of them not there"
    )
    if kind != "plain Django":
        assert (tally.unanswered, tally.refused, missing) == (0, 0, 0), (tmp_path / "log").read_text()[-4000:]
