"""Tests that the demo's verification sees a row that should have changed and one that should not."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest

from project.demo.verify import Invite, Problem, Verifier
from project.demo.worker_log import WorkerLog
from project.local.smtp import LocalSmtp
from project.salon.demo_data import load, make_demo_data
from tests.demo.conftest import Connection, instants_of

STORES = 3
# What the tasks do, written once more: applied in this order it must leave nothing to complain about.
AS_SPECIFIED: tuple[LiteralString, ...] = (
    "DELETE FROM customer_note WHERE deleted_at < %(notes_tick)s - interval '7 days'",
    """
    DELETE FROM customer_note AS n USING customer AS c WHERE c.id = n.customer_id
    AND c.deleted_at < %(customers_tick)s - interval '90 days'
    """,
    """
    UPDATE reservation AS r SET customer_id = NULL FROM customer AS c WHERE c.id = r.customer_id
    AND c.deleted_at < %(customers_tick)s - interval '90 days'
    """,
    """
    WITH confirmed AS (
        UPDATE reservation AS r SET status = 'confirmed' FROM customer AS c
        WHERE c.id = r.customer_id AND c.deleted_at IS NULL AND r.status = 'tentative'
          AND r.expires_at > now() + interval '30 minutes' AND r.id::text !~ '[08]$' RETURNING r.*
    )
    INSERT INTO customer_note (id, store_id, customer_id, body)
    SELECT id, store_id, customer_id,
           'Confirmed for ' || to_char(starts_at AT TIME ZONE 'Asia/Tokyo', 'YYYY-MM-DD HH24:MI') FROM confirmed
    """,
    "DELETE FROM customer WHERE deleted_at < %(customers_tick)s - interval '90 days'",
    "UPDATE reservation SET status = 'expired' WHERE status = 'tentative' AND expires_at <= now()",
    "DELETE FROM operator_session WHERE expires_at < %(operators_tick)s",
    "DELETE FROM operator_invitation WHERE expires_at < %(operators_tick)s",
    "DELETE FROM daily_sales WHERE business_date = %(target_date)s",
    """
    INSERT INTO daily_sales (id, store_id, business_date, total, count)
    SELECT gen_random_uuid(), s.id, %(target_date)s, coalesce(sum(amount), 0), count(v.id)
    FROM store AS s LEFT JOIN sale AS v
         ON v.store_id = s.id AND (v.sold_at AT TIME ZONE 'Asia/Tokyo')::date = %(target_date)s
    GROUP BY s.id
    """,
    """
    WITH file AS (
        INSERT INTO source_file (id, store_id, name, content)
        SELECT gen_random_uuid(), id, 'sales.txt', '' FROM store WHERE id::text !~ '[08]$' RETURNING *
    )
    INSERT INTO parse_task (id, store_id, source_file_id, status, lines, total, error)
    SELECT gen_random_uuid(), f.store_id, f.id, 'SUCCEEDED', count(v.id), coalesce(sum(v.amount), 0), ''
    FROM file AS f LEFT JOIN sale AS v ON v.store_id = f.store_id GROUP BY f.store_id, f.id
    """,
)


def _verify(
    connection: Connection, tmp_path: Path, *mistakes: LiteralString, invites: tuple[Invite, ...] = ()
) -> list[Problem]:
    instants = instants_of(connection)
    load(connection, make_demo_data(instants, stores=STORES))
    verifier = Verifier(connection, instants)
    verifier.prepare(invites)
    ticks = asdict(instants) | {"target_date": instants.target_date}
    with connection.transaction():  # as one: deferred keys
        for statement in AS_SPECIFIED:
            psycopg.ClientCursor(connection).execute(statement, ticks)
    for mistake in mistakes:
        connection.execute(mistake)
    log = WorkerLog(tmp_path / "worker.log")
    with LocalSmtp() as smtp:
        found = verifier.problems(invites, smtp, log)
    return [problem for problem in found if "no job of" not in problem.what]


def test_what_is_as_specified_is_verified(connection: Connection, tmp_path: Path) -> None:
    assert _verify(connection, tmp_path) == []


@pytest.mark.parametrize(
    ("mistake", "table"),
    [
        ("UPDATE store SET name = 'x' WHERE name LIKE 'Salon Hana Ginza'", "store"),
        ("UPDATE source_file SET name = 'x' WHERE id = (SELECT id FROM source_file LIMIT 1)", "source_file"),
        ("UPDATE parse_task SET status = 'RUNNING' WHERE id = (SELECT id FROM parse_task LIMIT 1)", "parse_task"),
        ("DELETE FROM sale WHERE id = (SELECT id FROM sale LIMIT 1)", "sale"),
        ("UPDATE daily_sales SET total = total + 1 WHERE id = (SELECT id FROM daily_sales LIMIT 1)", "daily_sales"),
        ("DELETE FROM customer_note WHERE id = (SELECT id FROM customer_note LIMIT 1)", "customer_note"),
        ("UPDATE customer SET name = 'x' WHERE id = (SELECT id FROM customer LIMIT 1)", "customer"),
        (
            """
    UPDATE reservation SET status = 'cancelled' WHERE id = (SELECT id FROM reservation
    WHERE status <> 'cancelled' LIMIT 1)
    """,
            "reservation",
        ),
        (
            """
    UPDATE reservation SET status = 'expired' WHERE id = (SELECT id FROM reservation
    WHERE status = 'tentative' AND expires_at > now() + interval '30 minutes' ORDER BY id LIMIT 1)
    """,
            "reservation",
        ),
        (
            """
    UPDATE operator_invitation SET sent_at = NULL WHERE id = (SELECT id FROM operator_invitation
    WHERE sent_at IS NOT NULL LIMIT 1)
    """,
            "operator_invitation",
        ),
        ("DELETE FROM operator_session WHERE id = (SELECT id FROM operator_session LIMIT 1)", "operator_session"),
        ("INSERT INTO salon_jobs_job (task, store_id) SELECT 'ping', id FROM store LIMIT 1", "job"),
    ],
)
def test_a_single_wrong_row_is_named(
    connection: Connection, tmp_path: Path, mistake: LiteralString, table: str
) -> None:
    problems = _verify(connection, tmp_path, mistake)

    assert problems
    assert all(problem.what.startswith(table) for problem in problems)
    chain = table == "operator_session"
    assert all((problem.store == "the chain") is chain for problem in problems)


@pytest.mark.parametrize(
    ("newer", "found"), [("'succeeded', '', now()", 0), ("'cancelled', '', now()", 2), ("'queued', '', NULL", 2)]
)
def test_a_superseded_job_needs_a_newer_one_that_succeeded(
    connection: Connection, tmp_path: Path, newer: LiteralString, found: int
) -> None:
    jobs = """
        INSERT INTO salon_jobs_job (task, store_id, job_key, state, reason, started_at, finished_at)
        SELECT 'ping', s.id, 'one', j.state, j.reason, j.ended_at, j.ended_at
        FROM (SELECT id FROM store LIMIT 1) AS s,
             (VALUES ('cancelled', 'superseded', now()), (%s)) AS j (state, reason, ended_at)
    """

    problems = _verify(connection, tmp_path, jobs.replace("%s", newer))

    assert len([problem for problem in problems if problem.what.startswith("job ")]) == found


def test_a_mail_that_never_came_is_named(connection: Connection, tmp_path: Path) -> None:
    store = make_demo_data(instants_of(connection), stores=1)
    invite = Invite(next(store.records("store"))["id"], "new@chain.example", rejected=False)

    what = {problem.what.partition(":")[0] for problem in _verify(connection, tmp_path, invites=(invite,))}

    assert what == {"operator_invitation", "new@chain.example"}
