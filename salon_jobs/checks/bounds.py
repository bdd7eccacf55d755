"""Checks of bounds that do not fit together: each is right alone, and one makes another void."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from django.core.checks import CheckMessage, Warning
from django.db import connections

from salon_jobs.brokers.broker import configured
from salon_jobs.conf import settings as conf
from salon_jobs.jobs import registry

_LONGEST_PICK_UP: Final = timedelta(seconds=5)


def check_bounds() -> Iterator[CheckMessage]:
    """Warn where one bound makes another one void."""
    if conf.poll_interval > _LONGEST_PICK_UP:
        hint = (
            "set it to 5 s or less: a job whose wake-up is lost (no listener, a pooler, a lost connection) waits until"
            " the next poll, and from 30 s on an idle worker says that it is not ready"
        )
        yield Warning("SALON_JOBS['POLL_INTERVAL'] is more than 5 s", hint=hint, id="salon_jobs.W002")
    for broker in configured():
        yield from broker.check()
    # A process is declared dead while it reconnects.
    using = conf.database
    settings = connections[using].settings_dict
    options = settings["OPTIONS"]
    timeout = str(options.get("connect_timeout") or "")
    # Otherwise none is set, or psycopg refuses it.
    timeout_s = int(timeout) if timeout.isdecimal() else 0
    hosts = str(options.get("host", settings["HOST"])).count(",") + 1
    silent_s = conf.process_silent_after.total_seconds()
    if timeout_s * hosts >= silent_s:
        of_hosts = f" for each of {hosts} hosts" if hosts > 1 else ""
        took = f"connecting to {using!r} may take {timeout_s} s{of_hosts}"
        text = f"{took}, and SALON_JOBS['PROCESS_SILENT_AFTER'] is {silent_s:g} s"
        hint = (
            "lower OPTIONS['connect_timeout'], or raise PROCESS_SILENT_AFTER: a process that reconnects for longer"
            " counts as dead, and its jobs are run again"
        )
        yield Warning(text, hint=hint, id="salon_jobs.W084")


# In milliseconds; transaction_timeout came with PostgreSQL 17.
_SERVER_TIMEOUTS: Final = """
SELECT name, setting::float8 / 1000 FROM pg_catalog.pg_settings
 WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout') AND setting <> '0' ORDER BY name
"""


def check_server_timeouts(using: str) -> Iterator[CheckMessage]:
    """Warn where the server ends the transaction of a store's job before the task's own timeout."""
    longest = max(
        (
            (task.timeouts.timeout.total_seconds(), task.name)
            for task in registry.tasks()
            if task.is_store_task and task.atomic and task.timeouts is not None and task.timeouts.timeout is not None
        ),
        default=None,
    )
    if longest is None:
        return
    run_s, task_name = longest
    with connections[using].cursor() as cursor:
        cursor.execute(_SERVER_TIMEOUTS)
        for setting, limit_s in cursor.fetchall():
            if limit_s < run_s:
                text = f"task {task_name!r} may run for {run_s:g} s in one transaction, and {setting} is {limit_s:g} s"
                hint = (
                    f"raise {setting} for the worker's role (ALTER ROLE … SET), lower the task's timeout, or declare it"
                    " atomic=False: the server closes the connection, and the attempt fails"
                )
                yield Warning(text, hint=hint, id="salon_jobs.W022")
