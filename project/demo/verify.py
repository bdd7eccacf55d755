"""Comparison of rows, jobs and mails with what was expected, store by store, as the superuser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, LiteralString
from uuid import UUID

import psycopg
from psycopg import ClientCursor, sql

from project.demo.expectations import ACTUAL, CHANGED, EXPECTED, LAPSED, TABLES
from project.demo.worker_log import WorkerLog
from project.local.smtp import LocalSmtp
from project.salon.demo_instants import DemoInstants

PER_STORE_TASKS: Final = (
    "expire-tentative-for-store",
    "aggregate-daily-sales-for-store",
    "cleanup-deleted-customers-for-store",
    "purge-deleted-customer-notes-for-store",
)
_BEFORE: Final = "demo_before"
_EXPECTED: Final = "demo_expected"
_STORE_COLUMNS: Final[dict[str, LiteralString]] = {
    "store": "id",
    "operator": "NULL::uuid",
    "operator_session": "NULL::uuid",
}
# ALL: a row that exists twice differs from one that exists once.
_COMPARE: Final = """
    WITH expected AS (SELECT {columns} FROM {expected} AS e), actual AS (SELECT {columns} FROM ({actual}) AS a)
    SELECT {store}, {table} || ': expected but not there: ' || to_jsonb(missing)::text
    FROM (TABLE expected EXCEPT ALL TABLE actual) AS missing
    UNION ALL
    SELECT {store}, {table} || ': there but not expected: ' || to_jsonb(extra)::text
    FROM (TABLE actual EXCEPT ALL TABLE expected) AS extra
"""


@dataclass(frozen=True, slots=True)
class Invite:
    """One invitation the demo sends; ``rejected`` ones go to an address that the mail server permanently rejects."""

    store_id: UUID
    email: str
    rejected: bool


@dataclass(frozen=True, slots=True)
class Problem:
    """One difference from what was expected; a difference in the chain itself belongs to no store."""

    store: str
    what: str


class Verifier:
    """Verifier that computes the expected rows before any task runs, and compares afterwards."""

    def __init__(self, connection: psycopg.Connection[Any], instants: DemoInstants) -> None:
        self._cursor = ClientCursor(connection)  # server-side parameters are not allowed in CREATE TABLE AS
        self._ticks = asdict(instants)

    def prepare(self, invites: Sequence[Invite]) -> None:
        """Copy the rows as they are now, and compute the expected ones."""
        for schema in (_BEFORE, _EXPECTED):
            renew = sql.SQL("DROP SCHEMA IF EXISTS {0} CASCADE; CREATE SCHEMA {0}").format(sql.Identifier(schema))
            self._cursor.execute(renew)
        for table in TABLES:
            names = sql.Identifier(_BEFORE, table), sql.Identifier("public", table)
            self._cursor.execute(sql.SQL("CREATE TABLE {} AS TABLE {}").format(*names))
        for table, query in EXPECTED.items():
            create = sql.SQL("CREATE TABLE {} AS {}").format(sql.Identifier(_EXPECTED, table), sql.SQL(query))
            self._cursor.execute(create, self._ticks)
        self._cursor.executemany(
            "INSERT INTO demo_expected.operator_invitation VALUES (%s, %s, 'new', NULL, %s)",
            [(invite.store_id, invite.email, not invite.rejected) for invite in invites],
        )

    def rows_changed(self) -> dict[str, int]:
        """Count the rows that changed, by task."""
        return {task: self._cursor.execute(query, self._ticks).fetchall()[0][0] for task, query in CHANGED.items()}

    def problems(self, invites: Sequence[Invite], smtp: LocalSmtp, log: WorkerLog) -> list[Problem]:
        """Return every difference from what was expected; an empty list means verified."""
        return [
            *(problem for table in TABLES for problem in self._rows(table)),
            *self._query(LAPSED),
            *self._unsuccessful(log),
            *self._failed(invites),
            *self._every_store_had_its_jobs(log),
            *_mails(invites, smtp),
        ]

    def _rows(self, table: LiteralString) -> list[Problem]:
        as_it_is = sql.SQL("SELECT * FROM {}").format(sql.Identifier("public", table))
        query = sql.SQL(_COMPARE).format(
            columns=sql.SQL(", ").join(map(sql.Identifier, self._columns(table))),
            expected=sql.Identifier(_EXPECTED, table),
            actual=sql.SQL(ACTUAL[table]) if table in ACTUAL else as_it_is,
            store=sql.SQL(_STORE_COLUMNS.get(table, "store_id")),
            table=sql.Literal(table),
        )
        return self._query(query)

    def _columns(self, table: str) -> list[str]:
        query = sql.SQL("SELECT * FROM {} LIMIT 0").format(sql.Identifier(_EXPECTED, table))
        return [column.name for column in self._cursor.execute(query).description or ()]

    def _unsuccessful(self, log: WorkerLog) -> list[Problem]:
        """Return the jobs that did not succeed; the rows of those that did are deleted.

        A live scheduler may meet a five-minute tick of its own. If the worker then gives back a job that it had not
        started, another job of its key has taken its place: one that succeeded after this one was created.
        """
        rows = self._cursor.execute("""
            SELECT store_id::text, id, task, state, reason, created_at FROM public.salon_jobs_job
            WHERE state <> 'succeeded' AND (state, task) <> ('failed', 'send-operator-invitation-email')
        """).fetchall()
        return [
            Problem(self._store_name(store), f"job {job} of {task} is {state} {reason}")
            for store, job, task, state, reason, created_at in rows
            if reason != "superseded" or log.tasks[task].stores.get(store, created_at) <= created_at
        ]

    def _failed(self, invites: Sequence[Invite]) -> list[Problem]:
        rejected = [(invite.store_id, invite.email) for invite in invites if invite.rejected]
        return self._query(
            """
            WITH refused AS (SELECT * FROM unnest(%(stores)s::uuid[], %(emails)s::text[]) AS r (store_id, email)),
            failed AS (
                SELECT j.store_id, i.email, j.id FROM public.salon_jobs_job AS j
                LEFT JOIN public.operator_invitation AS i ON i.id::text = j.payload ->> 'invitation_id'
                WHERE j.state = 'failed' AND j.attempts = j.max_attempts
                  AND j.attempts = (SELECT count(*) FROM public.salon_jobs_job_error AS e WHERE e.job_id = j.id)
            )
            SELECT coalesce(r.store_id, f.store_id),
                   'failed jobs: expected ' || coalesce(r.email, 'none') || ', found ' || coalesce(f.email, 'none')
            FROM refused AS r FULL JOIN failed AS f USING (store_id, email)
            WHERE r.email IS NULL OR f.id IS NULL
            """,
            {"stores": [store for store, _ in rejected], "emails": [email for _, email in rejected]},
        )

    def _every_store_had_its_jobs(self, log: WorkerLog) -> list[Problem]:
        stores = {str(row[0]) for row in self._cursor.execute("SELECT id FROM public.store").fetchall()}
        return [
            Problem(self._store_name(store), f"no job of {task} succeeded")
            for task in PER_STORE_TASKS
            for store in sorted(stores - log.tasks[task].stores.keys())
        ]

    def _query(self, query: LiteralString | sql.Composed, parameters: dict[str, Any] | None = None) -> list[Problem]:
        rows = self._cursor.execute(query, parameters).fetchall()
        return [Problem(self._store_name(store), what) for store, what in rows]

    def _store_name(self, store: object) -> str:
        if store is None:
            return "the chain"
        named = self._cursor.execute("SELECT name FROM demo_before.store WHERE id = %s", [store]).fetchone()
        return f"{named[0] if named else 'unknown store'} ({store})"


def _mails(invites: Sequence[Invite], smtp: LocalSmtp) -> list[Problem]:
    expected = {invite.email for invite in invites if not invite.rejected}
    problems = [
        Problem("the mail server", f"{email}: {smtp.recipients[email]} mails instead of {int(email in expected)}")
        for email in sorted(expected | smtp.recipients.keys())
        if smtp.recipients[email] != (email in expected)
    ]
    problems += [
        Problem("the mail server", f"invitation {invitation} arrived {count} times")
        for invitation, count in smtp.mails.items()
        if count != 1
    ]
    return problems
