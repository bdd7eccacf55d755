"""Adds the benchmark's tasks to the project's settings; everything else is what a real deployment runs with."""

from __future__ import annotations

from project.settings import *  # noqa: F403
from project.settings import INSTALLED_APPS, env
from project.settings import SALON_JOBS as _SALON_JOBS

INSTALLED_APPS = [*INSTALLED_APPS, "benchmarks"]
# How long the jobs of ``waiting`` wait, in seconds; other measures do not have them.
BENCHMARK_WAIT_S = env.float("WAIT_S", 0.0)
if BENCHMARK_WAIT_S:
    INSTALLED_APPS += ["benchmarks.ours.waiting", "benchmarks.peers.shared.rows"]
SALON_JOBS = {
    **_SALON_JOBS,
    "REQUEST_STORE": "benchmarks.ours.overhead.OneStore",
    "OUTBOX": {
        **_SALON_JOBS["OUTBOX"],
        "PUBLISHERS": {
            "null": "benchmarks.publishers.NullPublisher",
            "poisoned": "benchmarks.publishers.PoisonedPublisher",
        },
    },
}
TASKS = {"default": {"BACKEND": "salon_jobs.backend.SalonJobsBackend"}}
# The file to which ``mark`` and ``store_mark`` write when they started, one line each.
BENCHMARK_MARKS = env.str("BENCHMARK_MARKS", "")
