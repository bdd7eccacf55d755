"""Runs Celery's jobs that wait, a thread for each; their rows are read and written by Django's ORM.

Its integration with Django would close a connection after each job, which the setting for their reuse prevents. Jobs
are acknowledged at their end, as ours are.
"""

from __future__ import annotations

import os
import sys
import time

os.environ["DJANGO_SETTINGS_MODULE"] = "rows.settings"

import django
from celery import Celery

django.setup()

from rows.models import Row

_WAIT_S = float(os.environ["WAIT_S"])

app = Celery("waiting", broker=os.environ["DATABASE_URL"])
# All by their old names: the first has no other, and Celery refuses to mix both kinds.
app.conf.update(
    CELERY_DB_REUSE_MAX=1_000_000,
    CELERY_IGNORE_RESULT=True,
    CELERY_ACKS_LATE=True,
    CELERYD_PREFETCH_MULTIPLIER=1,
    BROKER_CONNECTION_RETRY_ON_STARTUP=True,
)


@app.task(name="wait")
def wait() -> None:
    """Wait."""
    time.sleep(_WAIT_S)


@app.task(name="wait-between-rows")
def wait_between_rows() -> None:
    """Read a row, wait, write one."""
    row = Row.objects.get(pk=1)
    time.sleep(_WAIT_S)
    Row.objects.create(number=row.number)


def add(count: int, rows: int) -> None:
    """Add jobs."""
    task = wait_between_rows if rows else wait
    with app.producer_pool.acquire(block=True) as producer:
        for _ in range(count):
            task.apply_async(producer=producer)


def work(at_once: int, _: int) -> None:
    """Run jobs until SIGTERM."""
    options = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=WARNING")
    app.worker_main(["worker", "--pool=threads", f"--concurrency={at_once}", *options])


if __name__ == "__main__":
    {"add": add, "work": work}[sys.argv[1]](*map(int, sys.argv[2:]))
