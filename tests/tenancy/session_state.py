"""State of a session, and statements that change it for the connection's next user."""

from __future__ import annotations

from typing import Any

from django.db import connections, transaction
from django.db.utils import DatabaseError

from tests.tenancy.probe import ask, visible

_STATE = """
    SELECT ARRAY[pg_backend_pid()::text, current_setting('role'), current_setting('search_path'),
           current_setting('row_security'), current_setting('statement_timeout'), current_user, session_user,
           current_setting('TimeZone'), current_setting('client_encoding'), current_setting('application_name'),
           coalesce(current_setting('app.note', true), ''), coalesce(current_setting('app.current_user_id', true), ''),
           current_setting('default_transaction_read_only'), (SELECT count(*)::text FROM pg_listening_channels()),
           (SELECT count(*)::text FROM pg_prepared_statements), current_setting('work_mem'),
           (SELECT count(*)::text FROM pg_cursors), to_regclass('pg_temp.left_behind')::text,
           (SELECT count(*)::text FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())]
"""
STATEMENTS = {
    "SET of the store": ["SET app.current_store_id = '{store}'"],
    "set_config of the store": ["SELECT set_config('app.current_store_id', '{store}', false)"],
    "set_config in a function": ["SELECT left_behind('{store}')"],
    "set_config of the user": ["SELECT set_config('app.current_user_id', '1', false)"],
    "SET of a name of one's own": ["SET app.note = 'x'"],
    "SET ROLE": ["SET ROLE {role}"],
    "SET SESSION AUTHORIZATION": ["SET SESSION AUTHORIZATION {role}", "SET ROLE {role}"],
    "SET search_path": ["SET search_path TO nowhere"],
    "SET row_security": ["SET row_security = off"],
    "SET statement_timeout": ["SET statement_timeout = '59s'"],
    "SET TIME ZONE": ["SET TIME ZONE 'Asia/Tokyo'"],
    "SET work_mem": ["SET work_mem = '99MB'"],
    "SET default_transaction_read_only": ["SET default_transaction_read_only = on"],
    "SET SESSION CHARACTERISTICS": ["SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY, DEFERRABLE"],
    "an advisory lock": ["SELECT pg_advisory_lock(4711)"],
    "LISTEN": ["LISTEN left_behind"],
    "PREPARE": ["PREPARE left_behind AS SELECT * FROM store"],
    "a cursor WITH HOLD": ["DECLARE left_behind CURSOR WITH HOLD FOR SELECT * FROM store"],
    "a temporary table": ["CREATE TEMP TABLE left_behind AS SELECT * FROM store"],
}
# Of the first fields of a state: the process of the server, role, search path, row security and timeout.
SETTINGS = slice(1, 5)
PREPARED = 14


def state(using: str = "default") -> list[Any]:
    """Return the state of a session, its last value of a sequence and the stores whose rows are visible."""
    values: list[Any] = ask(_STATE, using=using)
    last: object = None
    try:
        with transaction.atomic(using), connections[using].cursor() as cursor:
            cursor.execute("SELECT lastval()")
            last = cursor.fetchone()
    except DatabaseError:
        pass
    return [*values, last, visible(using)]
