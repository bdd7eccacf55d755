"""Adds the tests' tasks to the project's settings, and whatever the test asks for in SALON_JOBS_OVERRIDES (JSON)."""

from __future__ import annotations

import json

from project.settings import *  # noqa: F403
from project.settings import INSTALLED_APPS, SALON_JOBS, env

INSTALLED_APPS = [*INSTALLED_APPS, "tests.e2e"]
SALON_JOBS = {**SALON_JOBS, **json.loads(env.str("SALON_JOBS_OVERRIDES", "{}"))}
