"""Runs procrastinate's jobs that wait, as its Django app does; Django's async ORM reads and writes their rows."""

from __future__ import annotations

import asyncio
import os
import sys

os.environ["DJANGO_SETTINGS_MODULE"] = "rows.settings"

import django
import uvloop
from django.conf import settings

settings.INSTALLED_APPS.append("procrastinate.contrib.django")
django.setup()

from procrastinate.contrib.django import app
from rows.models import Row

_BATCH = 10_000
_WAIT_S = float(os.environ["WAIT_S"])


@app.task(name="wait")
async def wait() -> None:
    """Wait."""
    await asyncio.sleep(_WAIT_S)


@app.task(name="wait-between-rows")
async def wait_between_rows() -> None:
    """Read a row, wait, write one."""
    row = await Row.objects.aget(pk=1)
    await asyncio.sleep(_WAIT_S)
    await Row.objects.acreate(number=row.number)


def add(count: int, rows: int) -> None:
    """Add jobs."""
    task = wait_between_rows if rows else wait
    for start in range(0, count, _BATCH):
        task.batch_defer(*({} for _ in range(min(_BATCH, count - start))))


def work(at_once: int, _: int) -> None:
    """Run jobs until SIGTERM."""

    async def run() -> None:
        async with app.open_async():
            await app.run_worker_async(concurrency=at_once)

    with app.replace_connector(app.connector.get_worker_connector()):
        uvloop.run(run())


if __name__ == "__main__":
    {"add": add, "work": work}[sys.argv[1]](*map(int, sys.argv[2:]))
