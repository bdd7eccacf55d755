"""Plans of statements, from EXPLAIN ANALYZE."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.contrib.auth.models import User
from django.db import connections
from django.test import Client, override_settings

from salon_jobs.db import statements
from tests.support import change, plan_nodes

Node = dict[str, Any]
JOBS = "/admin/salon_jobs/job/"


class AdminRouter:
    """Router that sends Django's own tables to a role that may write them, since ``default`` is the worker."""

    def db_for_read(self, model: Any, **_: object) -> str | None:
        """Return the alias of Django's own apps."""
        return "owner" if model._meta.app_label in ("admin", "auth", "contenttypes", "sessions") else None

    db_for_write = db_for_read


@contextmanager
def signed_in(name: str = "planner") -> Iterator[Client]:
    """Return a client signed in to the admin as a superuser of that name."""
    with override_settings(DATABASE_ROUTERS=[AdminRouter()]):
        user = User.objects.create(username=name, is_superuser=True, is_staff=True)
        client = Client()
        client.force_login(user)
        yield client
        change("TRUNCATE auth_user CASCADE")


@contextmanager
def _rolled_back(alias: str) -> Iterator[Any]:
    """Yield psycopg's cursor of an alias in a transaction without JIT, then roll back."""
    connection = connections[alias]
    connection.ensure_connection()
    raw: Any = connection.connection
    with raw.cursor() as cursor:
        cursor.execute("BEGIN")
        try:
            cursor.execute("SET LOCAL jit = off")
            yield cursor
        finally:
            cursor.execute("ROLLBACK")


@contextmanager
def as_store(store: str) -> Iterator[Any]:
    """Yield a cursor of the web role in a transaction of the store, then roll back."""
    with _rolled_back("web") as cursor:
        cursor.execute("SELECT set_config('app.current_store_id', %s, true)", [store])
        yield cursor


def nodes(statement: str, parameters: dict[str, Any]) -> list[Node]:
    """Explain a statement of ours as the worker and return all plan nodes."""
    return nodes_of(statements.load(statement), parameters)


def nodes_of(text: str, parameters: dict[str, Any]) -> list[Node]:
    """Explain the text of a statement like ``nodes``; ANALYZE runs it in a transaction that is rolled back."""
    with _rolled_back("default") as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {text}", parameters)
        return plan_nodes(cursor.fetchone()[0])


def scans_of(query: str, alias: str = "operator") -> list[Node]:
    """Explain a query that Django made, and return the nodes that read a table."""
    with connections[alias].cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query.replace('%', '%%')}", [])
        return [node for node in plan_nodes(cursor.fetchone()[0]) if "Relation Name" in node]


def scans(plan: list[Node], table: str = "salon_jobs_job") -> list[Node]:
    """Return the nodes that read a table."""
    return [node for node in plan if node.get("Relation Name") == table and "Scan" in node["Node Type"]]


def rows_read(node: Node) -> float:
    """Return how many rows a node read, including those it discarded."""
    removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return float(node["Actual Loops"] * (node["Actual Rows"] + removed))


def indexes(plan: list[Node]) -> set[str]:
    """Return the names of the indexes a plan uses."""
    return {node["Index Name"] for node in plan if "Index Name" in node}


def assert_no_full_scan(plan: list[Node]) -> None:
    """Assert that a plan does not read the whole job table."""
    assert "Seq Scan" not in {node["Node Type"] for node in scans(plan)}
