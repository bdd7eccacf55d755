"""Settings of a database that change how values are written, or where tables are found."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

import psycopg
import pytest
from psycopg import sql

from tests.databases import rows
from tests.interpreter import manage, succeed
from tests.migrations.operations import succeed_together
from tests.settings import url_for

pytestmark = pytest.mark.process
# Each is legitimate, and changes how the server writes values or reads statements.
ODD: Final = {
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Asia/Kathmandu",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "quote_all_identifiers": "on",
    "transform_null_equals": "on",
}
CODE: Final = """
from datetime import timedelta
from django.db import connection
from tests.migrations.plain.tasks import ping
with connection.cursor() as cursor:
    cursor.execute("SELECT '-25:00:01'::interval, '01/02/2026'::date")
    print(cursor.fetchone())
ping.enqueue()
"""
ENQUEUE_AND_READ: Final = ("shell", "-v", "0", "-c", CODE)
MIGRATE: Final = ("migrate", "--verbosity", "0")


@pytest.fixture
def plain(owned: Callable[[str], dict[str, str]]) -> dict[str, str]:
    """Return the environment of a process of a project without stores, on a database of its own."""
    return owned("tests.migrations.plain_settings")


def alter(database: str, name: str, value: sql.Composable) -> None:
    with psycopg.connect(url_for(None, database), autocommit=True) as connection:
        change = sql.SQL("ALTER DATABASE {} SET {} = {}")
        connection.execute(change.format(sql.Identifier(database), sql.Identifier(name), value))


def test_odd_formats_and_list_of_schemas(fresh: str, plain: dict[str, str]) -> None:
    """How values are written changes nothing for migrations, jobs and the doctor.

    The tables are made and found in the first schema of a list, and the path is left to a person.
    """
    with psycopg.connect(url_for(None, fresh), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA a AUTHORIZATION {}").format(sql.Identifier(fresh)))
    alter(fresh, "search_path", sql.SQL("a, public"))
    for name, value in ODD.items():
        alter(fresh, name, sql.Literal(value))
    # The second reads when the first was.
    read = succeed_together(MIGRATE, MIGRATE, ("check", "--database", "default"), ENQUEUE_AND_READ, **plain)
    # The order remains that of DMY.
    assert "(datetime.timedelta(days=-2, seconds=82799), datetime.date(2026, 2, 1))" in read
    assert rows(fresh, "SELECT schemaname FROM pg_tables WHERE tablename = 'salon_jobs_job'") == [("a",)]
    succeed("runworker", "--burst", **plain)
    assert rows(fresh, "SELECT task, state FROM a.salon_jobs_job") == []  # it succeeded
    [drift] = json.loads(succeed("salon_jobs", "doctor", "--json", **plain))["drifts"]
    assert (drift["kind"], drift["found"], drift["needs_decision"]) == ("setting", "search_path = a, public", True)


def test_search_path_in_one_pair_of_quotes(fresh: str, plain: dict[str, str]) -> None:
    """A list that is quoted as a whole names one schema: everything says so that needs the tables."""
    succeed(*MIGRATE, **plain)
    alter(fresh, "search_path", sql.Literal("a, public"))
    path = 'search_path = "a, public" (source: database)'
    done = manage("migrate", **plain)
    assert f"CommandError: {path} leads to no schema that exists and that '{fresh}' may use; correct it" in done.stderr
    assert "Traceback" not in done.stderr
    done = manage("runworker", "--burst", **plain)
    assert f"the job tables are in the schema public, where {path} does not lead; correct it" in done.stderr
    [drift] = json.loads(succeed("salon_jobs", "doctor", "--json", **plain))["drifts"]
    assert drift["found"] == 'search_path = "a, public"'
