"""Settings for the browser tests: cheap password hashing, and an address for traces."""

from __future__ import annotations

from project.settings import *  # noqa: F403
from project.settings import SALON_JOBS as PROJECT_JOBS

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
SALON_JOBS = {**PROJECT_JOBS, "TRACE_LINK": "https://tempo.example/trace/{trace_id}"}
