"""Project settings with the chaos tasks and the overrides in SALON_JOBS_OVERRIDES (JSON)."""

from __future__ import annotations

import json

from project.settings import *  # noqa: F403
from project.settings import INSTALLED_APPS, SALON_JOBS, _default_database, env

INSTALLED_APPS = [*INSTALLED_APPS, "tests.chaos"]
SALON_JOBS = {**SALON_JOBS, **json.loads(env.str("SALON_JOBS_OVERRIDES", "{}"))}
# The program that runs the chaos learns its URL only after the project's settings were read.
DATABASES = {"default": _default_database()}
