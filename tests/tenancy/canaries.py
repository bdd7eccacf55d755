"""Makes a row of every table that a test can tell from all others, of one store where rows have one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
from psycopg import sql

NOW: Final = datetime(2026, 5, 6, tzinfo=UTC)
_SMALL: Final = 2**31 - 1


def _word() -> str:
    return f"canary-{uuid4().hex}"


def _number() -> int:
    return uuid4().int % _SMALL


def _day() -> date:
    return date.fromordinal(1 + _number() % 3_000_000)


_ROWS: Final[dict[str, Callable[[UUID], dict[str, Any]]]] = {
    "store": lambda store: {"id": store, "name": _word()},
    "customer": lambda store: {"id": uuid4(), "store_id": store, "name": _word(), "email": ""},
    "customer_note": lambda store: {"id": uuid4(), "store_id": store, "customer_id": uuid4(), "body": _word()},
    "reservation": lambda store: {"id": uuid4(), "store_id": store, "status": "confirmed", "starts_at": NOW},
    "sale": lambda store: {"id": uuid4(), "store_id": store, "sold_at": NOW, "amount": 1},
    "daily_sales": lambda store: {"id": uuid4(), "store_id": store, "business_date": _day(), "total": 1, "count": 1},
    "uploaded_file": lambda store: {"id": uuid4(), "store_id": store, "name": _word(), "content": ""},
    "operator_invitation": lambda store: {
        "id": uuid4(),
        "store_id": store,
        "email": "",
        "token": _word(),
        "expires_at": NOW,
    },
    "membership": lambda store: {"id": uuid4(), "store_id": store, "user_id": _number()},
    "operator": lambda _: {"id": uuid4(), "email": _word(), "name": ""},
    "operator_session": lambda _: {"id": uuid4(), "expires_at": NOW, "operator_id": uuid4()},
    "salon_jobs_job": lambda store: {"task": "test-store", "store_id": store, "job_key": _word()},
    "salon_jobs_job_error": lambda store: {
        "job_id": _number(),
        "store_id": store,
        "attempt": 1,
        "error_class": _word(),
    },
    "salon_jobs_limit": lambda _: {"kind": "queue", "name": _word()},
    "salon_jobs_process": lambda _: {"kind": "worker", "hostname": _word(), "pid": 1},
    "salon_jobs_cron_entry": lambda _: {"name": _word()},
    "salon_jobs_cron_tick": lambda _: {"entry": _word(), "tick_at": NOW},
    "salon_jobs_superseded": lambda _: {"job_id": _number(), "lease": 1},
    "salon_jobs_fan_out": lambda _: {"task": _word(), "digest": ""},
    "salon_jobs_task_minute": lambda _: {
        "minute": NOW,
        "task": _word(),
        "queue": "default",
        "succeeded": 1,
        "retried": 0,
        "failed": 0,
        "cancelled": 0,
        "snoozed": 0,
        "released": 0,
        "rescued": 0,
        "duration_s": 0.0,
        "durations": [0],
        "wait_s": 0.0,
        "waits": [0],
    },
    "salon_jobs_queue_minute": lambda _: {
        "minute": NOW,
        "queue": _word(),
        "waiting": 1,
        "due": 1,
        "oldest_due_s": 0.0,
        "exact": True,
    },
    "salon_jobs_message": lambda store: {
        "message_id": uuid4(),
        "aggregate_type": "rn::memory:::canaries",
        "event": _word(),
        "payload": "{}",
        "store_id": store,
    },
    "salon_jobs_blocked_aggregate": lambda store: {
        "aggregate_type": _word(),
        "partition": 0,
        "head_id": _number(),
        "store_id": store,
        "status": "parked",
    },
    "salon_jobs_partition": lambda _: {"partition": _number() % 30_000},
    "salon_jobs_destination": lambda _: {"aggregate_type": _word()},
    "salon_jobs_inbox": lambda _: {"consumer": _word(), "message_id": _word(), "status": "enqueued"},
    "salon_jobs_replay": lambda _: {"requested_by": _word(), "criteria": "{}", "messages": 1},
    "auth_group": lambda _: {"name": _word()},
    "auth_group_permissions": lambda _: {"group_id": _number(), "permission_id": 1},
    "auth_permission": lambda _: {"name": _word(), "content_type_id": 1, "codename": _word()},
    "auth_user": lambda _: {
        "username": _word(),
        "password": "",
        "is_superuser": False,
        "first_name": "",
        "last_name": "",
        "email": "",
        "is_staff": False,
        "is_active": True,
        "date_joined": NOW,
    },
    "auth_user_groups": lambda _: {"user_id": _number(), "group_id": 1},
    "auth_user_user_permissions": lambda _: {"user_id": _number(), "permission_id": 1},
    "django_admin_log": lambda _: {
        "action_time": NOW,
        "object_repr": _word(),
        "action_flag": 1,
        "change_message": "",
        "user_id": 1,
    },
    "django_content_type": lambda _: {"app_label": _word(), "model": _word()},
    "django_session": lambda _: {"session_key": uuid4().hex, "session_data": "", "expire_date": NOW},
    "django_migrations": lambda _: {"app": _word(), "name": _word(), "applied": NOW},
}
TABLES: Final = tuple(_ROWS)
# Tables that migrations fill, and the column by which a canary is known there.
_NAMED_BY_MIGRATIONS: Final = {
    "auth_permission": "codename",
    "django_content_type": "model",
    "django_migrations": "name",
}


def make(table: str, store: UUID) -> dict[str, Any]:
    """Return the values of a new row by column; a table without stores takes no notice of ``store``."""
    return _ROWS[table](store)


def fill(connection: psycopg.Connection[Any], stores: list[UUID], tables: Sequence[str] = TABLES) -> None:
    """Put a row of each store into every table (or some), as the superuser; foreign keys and triggers are not asked."""
    with connection.transaction():
        connection.execute("SET LOCAL session_replication_role = replica")
        for table in tables:
            for store in stores:
                statement, parameters = insert(table, make(table, store))
                # A store has one row of its own.
                connection.execute(statement + sql.SQL(" ON CONFLICT DO NOTHING"), parameters)


def clear(connection: psycopg.Connection[Any]) -> None:
    """Take away what ``fill`` and the tests have put there, and nothing that the migrations did."""
    with connection.transaction():
        connection.execute("SET LOCAL session_replication_role = replica")
        for table in TABLES:
            everything = sql.SQL("DELETE FROM {}").format(sql.Identifier(table))
            if table in _NAMED_BY_MIGRATIONS:
                named = sql.Identifier(_NAMED_BY_MIGRATIONS[table])
                everything += sql.SQL(" WHERE {} LIKE 'canary-%'").format(named)
            connection.execute(everything)


def insert(table: str, values: dict[str, Any]) -> tuple[sql.Composed, list[Any]]:
    """Return an INSERT and its parameters."""
    statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
        sql.Identifier(table),
        sql.SQL(", ").join(map(sql.Identifier, values)),
        sql.SQL(", ").join(sql.Placeholder() * len(values)),
    )
    return statement, list(values.values())
