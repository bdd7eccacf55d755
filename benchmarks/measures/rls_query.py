"""Measures queries under the store policy, compared with the same with an explicit WHERE and no policy, in turn."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import md5
from statistics import median
from typing import Any, Final
from uuid import UUID

import django
import psycopg

from benchmarks import queue
from benchmarks.bench import Bench
from benchmarks.measure import OURS, Contestant, Figures, Goal, Measure
from benchmarks.server import Database
from salon_jobs.access.policies import Parent, store_access
from salon_jobs.conf import Roles
from salon_jobs.conf import settings as conf
from salon_jobs.core.rights import ALL_ROWS

_STORES: Final = 1000
_DAY: Final = "sold_at >= '2026-01-02' AND sold_at < '2026-01-03'"
# Shape → the statement; {where} is where the other side names the store.
_SHAPES: Final = {
    "key": "SELECT * FROM sale WHERE id = '{key}'{where}",
    "day": f"SELECT * FROM sale WHERE {_DAY}{{where}}",
    "page": "SELECT * FROM sale WHERE true{where} ORDER BY sold_at DESC LIMIT 50",
    "all": "SELECT * FROM sale WHERE true{where}",
    "total": "SELECT count(*), sum(amount) FROM sale WHERE true{where}",
    "join": "SELECT r.starts_at, c.name FROM reservation AS r JOIN customer AS c"
    " ON c.id = r.customer_id AND c.store_id = r.store_id WHERE true{where}",
    "update": f"UPDATE sale SET amount = amount + 1 WHERE {_DAY}{{where}}",
    # A table without the store's column, isolated through the customers.
    "child-key": "SELECT * FROM remark WHERE id = '{child}'{where}",
    "child-parent": "SELECT * FROM remark WHERE customer_id = '{key}'{where}",
    "child-all": "SELECT * FROM remark WHERE true{where}",
    "child-total": "SELECT count(*) FROM remark WHERE true{where}",
}
_OF_STORE: Final = {"join": " AND r.store_id = '{store}'"} | dict.fromkeys(
    (shape for shape in _SHAPES if shape.startswith("child")),
    " AND customer_id IN (SELECT id FROM customer WHERE store_id = '{store}')",
)


@contextmanager
def _contestants(bench: Bench) -> Iterator[Sequence[Contestant]]:
    with bench.another_database() as database:
        _fill(database, bench.sizes.rls_rows)
        yield [Contestant(OURS, partial(_ratios, database, bench.sizes.rls_repeats))]


def _fill(database: Database, rows: int) -> None:
    """Share the rows out to the stores, an hour between two sales of a store; a tenth as many customers of ten remarks.

    The first customer of a store has the key of its first sale.
    """
    queue.create_stores(database, 1, _STORES)
    each = rows // _STORES
    with database.connect() as connection:
        connection.execute("SET session_replication_role = replica")  # no foreign key is looked up
        connection.execute(
            "INSERT INTO sale (id, store_id, sold_at, amount)"
            " SELECT md5(s.id::text || n)::uuid, s.id, timestamptz '2026-01-01' + n * interval '1 hour', n"
            "   FROM generate_series(1, %s::bigint) AS n, store AS s",
            (each,),
        )
        connection.execute(
            "INSERT INTO customer (id, store_id, name, email)"
            " SELECT md5(s.id::text || n)::uuid, s.id, 'Customer ' || n, ''"
            "   FROM generate_series(1, greatest(%s::bigint / 10, 1)) AS n, store AS s",
            (each,),
        )
        connection.execute(
            "INSERT INTO reservation (id, store_id, customer_id, status, starts_at)"
            " SELECT gen_random_uuid(), store_id, id, 'confirmed', now() FROM customer"
        )
        connection.execute(
            "CREATE TABLE remark AS"
            " SELECT md5(c.id::text || n)::uuid AS id, c.id AS customer_id, 'Remark ' || n AS body"
            "   FROM generate_series(1, 10) AS n, customer AS c"
        )
        connection.execute("ALTER TABLE remark ADD PRIMARY KEY (id); CREATE INDEX ON remark (customer_id)")
        # The type of the stores' keys is that of a model.
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.settings")
        django.setup()
        roles, may = Roles() if conf.roles.one_user else conf.roles, dict.fromkeys(ALL_ROWS, ())
        access = store_access("remark", "", [Parent("customer_id", "customer", "id")], roles=roles, web=may, worker=may)
        for statement in access.install(roles.runtime):
            connection.execute(statement.encode())
    database.settle()


def _ratios(database: Database, repeats: int) -> Figures:
    """Return the median time of each shape under the policy, as a ratio to that without one."""
    with psycopg.connect(database.url("web")) as web, psycopg.connect(database.superuser_url) as bypassing:
        return {shape: _ratio(web, bypassing, shape, repeats) for shape in _SHAPES}


def _ratio(web: psycopg.Connection[Any], bypassing: psycopg.Connection[Any], shape: str, repeats: int) -> float:
    policy, where = list[float](), list[float]()
    of_store = _OF_STORE.get(shape, " AND store_id = '{store}'")
    for number in range(repeats + 1):
        store = queue.store_id(1 + number * 37 % _STORES)
        key = UUID(md5(f"{store}1".encode(), usedforsecurity=False).hexdigest())
        child = UUID(md5(f"{key}1".encode(), usedforsecurity=False).hexdigest())
        turns = [
            (policy, web, _SHAPES[shape].format(key=key, child=child, where="")),
            (where, bypassing, _SHAPES[shape].format(key=key, child=child, where=of_store.format(store=store))),
        ]
        for times, connection, statement in turns if number % 2 else reversed(turns):
            times.append(_timed(connection, store, statement))
    return median(policy[1:]) / median(where[1:])


def _timed(connection: psycopg.Connection[Any], store: str, statement: str) -> float:
    """Run a statement as Django does, unprepared, and fetch all it gives; the transaction around it is not counted."""
    connection.execute("SELECT set_config('app.current_store_id', %s, true)", (store,))
    began = time.perf_counter()
    cursor = connection.execute(statement.encode(), prepare=False)
    if cursor.description is not None:
        cursor.fetchall()
    took_s = time.perf_counter() - began
    connection.rollback()
    return took_s


RLS_QUERY = Measure(
    name="rls-query",
    title="queries under the policy, over those of a role without one that name the store (1,000 stores, 500,000 rows)",
    units=dict.fromkeys(_SHAPES, "×"),
    goals=tuple(Goal(figure=shape, at_most=1.2) for shape in _SHAPES),
    contestants=_contestants,
)
