"""Adds the benchmark's tasks to the project's settings; everything else is what a real deployment runs with."""

from __future__ import annotations

from project.settings import *  # noqa: F403
from project.settings import INSTALLED_APPS, env

INSTALLED_APPS = [*INSTALLED_APPS, "benchmarks"]
# The file to which ``mark`` and ``store_mark`` write when they started, one line each.
BENCHMARK_MARKS = env.str("BENCHMARK_MARKS", "")
