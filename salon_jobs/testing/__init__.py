"""Test helpers for host projects: run jobs without a worker, act as roles and stores, and prove that tables isolate."""

from __future__ import annotations

from salon_jobs.testing.at_once import run_at_once
from salon_jobs.testing.drain import DrainedJob, DrainedMessage, assert_enqueued, drain_jobs, drain_outbox, perform_job
from salon_jobs.testing.isolation import as_role, as_store, assert_isolated

__all__ = [
    "DrainedJob",
    "DrainedMessage",
    "as_role",
    "as_store",
    "assert_enqueued",
    "assert_isolated",
    "drain_jobs",
    "drain_outbox",
    "perform_job",
    "run_at_once",
]
