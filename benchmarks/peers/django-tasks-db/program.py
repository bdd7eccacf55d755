"""Runs django-tasks-db for the benchmark; ``benchmarks.peers`` lists the actions, ``enqueue N`` is one more."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from urllib.parse import unquote, urlsplit

import django
from arrivals import due_times, pause_s
from django.conf import settings

if not settings.configured:
    _url = urlsplit(os.environ["DATABASE_URL"])
    settings.configure(
        SECRET_KEY="x",  # noqa: S106
        USE_TZ=True,
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": _url.path.lstrip("/"),
                "USER": _url.username,
                "PASSWORD": unquote(_url.password or ""),
                "HOST": _url.hostname,
                "PORT": _url.port,
                "CONN_MAX_AGE": None,
            }
        },
        INSTALLED_APPS=["django_tasks_db"],
        TASKS={"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}},
        LOGGING={"version": 1, "disable_existing_loggers": False, "root": {"level": "WARNING"}},
    )
    django.setup()

from django.core.management import call_command
from django.db import connection, transaction
from django.tasks import task
from django.test.utils import CaptureQueriesContext

_IN_TRANSACTION = 200


@task
def noop() -> None:
    """Do nothing."""


@task
def mark(added_ns: int) -> None:
    """Note when the job was added and when it started."""
    started_ns = time.monotonic_ns()
    with open(os.environ["BENCHMARK_MARKS"], "a") as marks:
        marks.write(f"{added_ns} {started_ns}\n")


def setup() -> None:
    """Install the schema."""
    call_command("migrate", verbosity=0)


def bulk(count: int) -> None:
    """Add many jobs in one transaction; it has no batch form."""
    connection.ensure_connection()
    began = time.monotonic()
    with transaction.atomic():
        for _ in range(count):
            noop.enqueue()
    print(json.dumps({"rate": count / (time.monotonic() - began)}))


def worker() -> None:
    """Run jobs until SIGTERM, polling a hundred times a second when there is none."""
    call_command("db_worker", interval=0.01, startup_delay=False, verbosity=0)


def default_worker() -> None:
    """Run jobs until SIGTERM with the command's defaults."""
    call_command("db_worker", verbosity=0)


def latency(count: int) -> None:
    """Add jobs one by one, with pauses."""
    for _ in range(count):
        time.sleep(random.uniform(0.02, 0.06))
        mark.enqueue(added_ns=time.monotonic_ns())
    print(json.dumps({"added": count}))


def steady(count: int, batch: int, rate: int, start_ns: int) -> None:
    """Add jobs at a steady rate, one by one or some in a transaction."""
    for due_ns in due_times(count // batch, rate / batch, start_ns):
        time.sleep(pause_s(due_ns))
        added_ns = time.monotonic_ns()
        if batch == 1:
            mark.enqueue(added_ns=added_ns)
        else:
            with transaction.atomic():
                for _ in range(batch):
                    mark.enqueue(added_ns=added_ns)
    print(json.dumps({"added": count}))


def enqueue(count: int) -> None:
    """Time one enqueue in a transaction, and count its queries; the first transaction warms up."""
    spent = 0.0
    for start in range(-_IN_TRANSACTION, count, _IN_TRANSACTION):
        size = min(_IN_TRANSACTION, count - start)
        with transaction.atomic():
            began = time.perf_counter()
            for _ in range(size):
                noop.enqueue()
            spent += time.perf_counter() - began if start >= 0 else 0
    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        noop.enqueue()
    print(json.dumps({"us": spent / count * 1e6, "queries": len(queries)}))


ACTIONS = {
    "setup": setup,
    "bulk": bulk,
    "worker": worker,
    "default-worker": default_worker,
    "latency": latency,
    "steady": steady,
    "enqueue": enqueue,
}

if __name__ == "__main__":
    import program  # the path by which the worker finds the tasks

    program.ACTIONS[sys.argv[1]](*map(int, sys.argv[2:]))
