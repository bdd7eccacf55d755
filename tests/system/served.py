"""Settings for the browser tests: cheap password hashing, an address for traces, and an admin for staff."""

from __future__ import annotations

from project.settings import *  # noqa: F403
from project.settings import INSTALLED_APPS as PROJECT_APPS
from project.settings import SALON_JOBS as PROJECT_JOBS

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
SALON_JOBS = {**PROJECT_JOBS, "TRACE_LINK": "https://tempo.example/trace/{trace_id}"}
INSTALLED_APPS = ["salon_jobs.staff", *PROJECT_APPS]
ROOT_URLCONF = "tests.system.served_urls"
