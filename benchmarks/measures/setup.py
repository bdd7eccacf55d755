"""Measures what the app adds to ``django.setup()``, by fresh interpreters in turn.

Processor time, which hardly depends on what else the machine does; nothing here waits. The modules are compiled before,
as pip compiles those that it installs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Final

from benchmarks.bench import Bench
from benchmarks.measure import OURS, Contestant, Figures, Goal, Measure
from benchmarks.processes import ROOT

_OTHERS: Final = ("admin", "auth", "contenttypes", "sessions", "messages", "staticfiles")
_OURS: Final = ("salon_jobs", "pgtrigger")
_PROGRAM: Final = """
import resource, sys
from time import process_time
from django.conf import settings
names = ["django.contrib." + name for name in sys.argv[1].split(",")] + sys.argv[2:]
database = {"ENGINE": "django.db.backends.postgresql", "NAME": "x"}
settings.configure(SECRET_KEY="x", INSTALLED_APPS=names, DATABASES={"default": database})
import django
began = process_time()
django.setup()
print(process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


@contextmanager
def _contestants(bench: Bench) -> Iterator[Sequence[Contestant]]:
    yield [Contestant(OURS, partial(_added, bench.sizes.setup_runs))]


def _added(count: int) -> Figures:
    _setup(*_OURS)
    runs = [(_setup(), _setup(*_OURS)) for _ in range(count)]
    without, added = ([median(figures) for figures in zip(*each, strict=True)] for each in zip(*runs, strict=True))
    return {"without": without[0] * 1000, "ms": (added[0] - without[0]) * 1000, "mib": added[1] - without[1]}


def _setup(*apps: str) -> tuple[float, float]:
    """Return the processor seconds that ``django.setup()`` takes with these apps, and the process's memory in MiB."""
    words = [sys.executable, "-c", _PROGRAM, ",".join(_OTHERS), *apps]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    seconds, mib = done.stdout.split()
    return float(seconds), float(mib)


SETUP: Final = Measure(
    name="setup",
    title="what salon_jobs and pgtrigger add to django.setup(), median of runs in turn",
    units={"without": "ms", "ms": "ms", "mib": "MiB"},
    goals=(Goal(figure="ms", at_most=60), Goal(figure="mib", at_most=5)),
    contestants=_contestants,
)
