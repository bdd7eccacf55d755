"""Project settings with the tests' tasks and the overrides in SALON_JOBS_OVERRIDES (JSON).

With FAULT among them, worker processes die at their start, in new interpreters, as long as that file exists. With
SPANS, they write their spans into that file. PATCHES maps dotted paths of constants to other values. DIES is a method,
by dotted path, and a file: the first call that finds the file deletes it and raises SystemExit. APP is an additional
app: its folder and its name. POOL is Django's OPTIONS["pool"].
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from project.settings import *  # noqa: F403
from project.settings import DATABASES, INSTALLED_APPS, SALON_JOBS, env

# health_check loads a library of DNS, which is a seventh of what the start of a process costs.
INSTALLED_APPS = [*(app for app in INSTALLED_APPS if app != "health_check"), "tests.e2e"]
_overrides = json.loads(env.str("SALON_JOBS_OVERRIDES", "{}"))
_fault = Path(_overrides.pop("FAULT", "/nowhere"))
if spans := _overrides.pop("SPANS", None):
    from tests.e2e.span_file import trace_into

    trace_into(Path(spans))
    _overrides["TRACING"] = True
if app := _overrides.pop("APP", None):
    sys.path.insert(0, app[0])
    INSTALLED_APPS.append(app[1])
if pool := _overrides.pop("POOL", None):
    DATABASES = {"default": {**DATABASES["default"], "CONN_MAX_AGE": 0}}
    DATABASES["default"]["OPTIONS"] = {**DATABASES["default"].get("OPTIONS", {}), "pool": pool}
PATCHES = _overrides.pop("PATCHES", {})
DIES = _overrides.pop("DIES", [])
# Most tests need only one process.
SALON_JOBS = {**SALON_JOBS, "PROCESSES": 1, **_overrides}

if "--child" in sys.argv and _fault.exists():
    os._exit(9)
