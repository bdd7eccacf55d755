"""Setting TASKS of the tests and of the workers they start."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

BACKEND = "salon_jobs.backend.SalonJobsBackend"
TASKS: dict[str, dict[str, Any]] = {
    "default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"]},
    "open": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {"max_attempts": 2, "keep_result": timedelta(hours=1)}},
}
