"""Settings of a site that streams rows, for one scene: the environment's SCENE (JSON)."""

from __future__ import annotations

import gc
import json
import os

from project.settings import *  # noqa: F403
from project.settings import DATABASES, INSTALLED_APPS, SALON_JOBS

_scene = json.loads(os.environ["SCENE"])
# What is abandoned is found soon, in whichever thread makes objects, be it inside a statement.
gc.set_threshold(300, 2, 2)

ROOT_URLCONF = "tests.e2e.streams.site"
ALLOWED_HOSTS = ["*"]
MIDDLEWARE = ["tests.e2e.streams.site.stop_outside"]
DATABASES["default"].update(CONN_MAX_AGE=0, CONN_HEALTH_CHECKS=False)
DATABASES["default"]["OPTIONS"]["pool"] = {"min_size": 1, "max_size": _scene["pool"], "timeout": 15}
match _scene["site"]:
    case "plain Django":
        INSTALLED_APPS = []
        del SALON_JOBS
    case "stores":
        MIDDLEWARE += ["salon_jobs.tenancy.request.TenantMiddleware"]
        SALON_JOBS = {**SALON_JOBS, "REQUEST_STORE": "tests.e2e.streams.site.ByHeader", "SENTRY": False}
        if _scene["resets"]:
            from salon_jobs.tenancy import reset_store

            DATABASES["default"]["OPTIONS"]["pool"]["reset"] = reset_store

LOGGING = {
    "version": 1,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "loggers": {"django.request": {"handlers": ["console"], "level": "ERROR"}},
}
