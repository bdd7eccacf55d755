"""Fans a task out to every store, as a cron job does."""

from __future__ import annotations

import time

from django.db import connection

from benchmarks import tasks
from benchmarks.processes import print_figures
from salon_jobs import fan_out


def main(kind: str, day: str) -> None:
    """Fan out once, to the task with a key or to the one without."""
    connection.ensure_connection()
    began = time.monotonic()
    done = fan_out(tasks.fanned_out, day=day) if kind == "keyed" else fan_out(tasks.store_noop)
    print_figures(seconds=time.monotonic() - began, added=done.inserted)
