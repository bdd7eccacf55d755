"""Settings of the worker processes that run Django's tasks, without the tests' modules."""

from __future__ import annotations

from tests.backend import aliases
from tests.e2e.worker_settings import *  # noqa: F403

TASKS = aliases.TASKS
