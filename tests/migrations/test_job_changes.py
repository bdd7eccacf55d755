"""Migrates back and forth while jobs wait for others: flows, follow-ups and ordered jobs go on as if nothing was."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from tests.databases import rows
from tests.interpreter import succeed

ADD = "SELECT array_agg(job_id) FROM salon_jobs_add_jobs('x', ARRAY['{}', '{}', '{}'], NULL, %s::jsonb, NULL, %s)"
WAITING = """
SELECT (SELECT array_agg(id ORDER BY id) FROM salon_jobs_job WHERE run_at <= now()),
       (SELECT remaining FROM salon_jobs_follow_up), (SELECT count(*) FROM salon_jobs_change)
"""


def test_waiting_jobs_outlast_migration(fresh: str, owned: Callable[[str], dict[str, str]]) -> None:
    """Backwards the functions of the release stay, with their table."""
    plain = owned("tests.migrations.plain_settings")
    succeed("migrate", "--verbosity", "0", **plain)
    with psycopg.connect(plain["ONE_USER_URL"], autocommit=True) as connection:

        def value(statement: str, *parameters: object) -> list[int]:
            found = connection.execute(statement.encode(), parameters).fetchone()
            assert found is not None
            return list(found[0] or ())

        with connection.transaction():
            flow = value(ADD, "{}", None)
            connection.execute("SELECT salon_jobs_add_flow('f', NULL, NULL)")
            last = "SELECT ARRAY[salon_jobs_add_flow_members(max(id), %s, array_fill('ended'::text, ARRAY[3]), %s, %s)]"
            value(f"{last} FROM salon_jobs_flow", flow, [flow[2], flow[2]], flow[:2])
            first = value(ADD, "{}", None)
            value("SELECT ARRAY[salon_jobs_add_follow_up(%s, 'then', '{}', NULL, '{}')]", first)
        ordered = value(ADD, '{"ordered": "strict"}', ["a", "a", "a"])
        end = "DELETE FROM salon_jobs_job WHERE id = ANY (%s)"
        due = {*flow[:2], *first, ordered[0]}
        for target, ended in (
            ("0009_validate_checks", [flow[0], first[0], ordered[0]]),
            ("0010_job_changes", [flow[1], first[1], ordered[1]]),
        ):
            succeed("migrate", "salon_jobs", target, "--verbosity", "0", **plain)
            connection.execute(end, [ended])
            due = due - {*ended} | {ordered[ordered.index(ended[2]) + 1]}
            due |= {flow[2]} if ended[0] == flow[1] else set()
            left = 3 - first.index(ended[1]) - 1
            assert rows(fresh, WAITING) == [(sorted(due), left, 0)]
        connection.execute(end, [first[2:]])
    assert rows(fresh, "SELECT count(*) FROM salon_jobs_job WHERE task = 'then'") == [(1,)]
