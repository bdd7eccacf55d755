"""Settings of the tests: a database with the real roles, on the server in the environment or an embedded one."""

from __future__ import annotations

import atexit
import os
import secrets
from urllib.parse import urlsplit, urlunsplit

if "DATABASE_URL_BOOTSTRAP" not in os.environ:
    from project.local.postgres import EmbeddedPostgres

    _server = EmbeddedPostgres(fsync=False)
    _server.start()
    atexit.register(_server.close)
    os.environ["DATABASE_URL_BOOTSTRAP"] = _server.url

# The workers of pytest-xdist share the server, its roles and a template; each has a database of its own.
_RUN = os.environ.setdefault("SALON_TEST_RUN", secrets.token_hex(4))
TEMPLATE = f"salon_test_{_RUN}"
TEST_DATABASE = f"{TEMPLATE}_{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"
PASSWORD = os.environ.setdefault("SALON_TEST_PASSWORD", secrets.token_urlsafe(12))
_ROLE_URLS = {
    "DATABASE_URL_MIGRATOR": "migrator",
    "DATABASE_URL": "app",
    "WORKER_DATABASE_URL": "worker_runtime",
    "OPERATOR_DATABASE_URL": "jobs_operator",
}


def url_for(role: str | None, database: str = TEST_DATABASE, *, server: str | None = None) -> str:
    """Return the URL of a role (None: the superuser) on the test server, or that of a superuser's URL."""
    parts = urlsplit(server or os.environ["DATABASE_URL_BOOTSTRAP"])
    login = f"{role}:{PASSWORD}" if role else parts.netloc.rpartition("@")[0]
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, f"{login}@{host}", f"/{database}", parts.query, ""))


for _variable, _role in _ROLE_URLS.items():
    os.environ[_variable] = url_for(_role)
for _variable in ("MIGRATOR_PASSWORD", "APP_PASSWORD", "WORKER_RUNTIME_PASSWORD", "JOBS_OPERATOR_PASSWORD"):
    os.environ[_variable] = PASSWORD
os.environ["SECRET_KEY"] = "for tests only"

from project.settings import *  # noqa: E402, F403
from project.settings import INSTALLED_APPS as _INSTALLED_APPS  # noqa: E402
from project.settings import SALON_JOBS as _SALON_JOBS  # noqa: E402
from project.settings import _database  # noqa: E402
from tests.backend import aliases  # noqa: E402

os.environ["SUPERUSER_URL"] = url_for(None)
DATABASES = {
    "default": _database("WORKER_DATABASE_URL"),
    "web": _database("DATABASE_URL"),
    "operator": _database("OPERATOR_DATABASE_URL"),
    "migrator": _database("DATABASE_URL_MIGRATOR"),
    "owner": _database("SUPERUSER_URL"),
}
# Tests initialize Sentry's SDK only after Django has started, so its import cannot switch this on.
# What a session without a store sees is what many of them are about.
SALON_JOBS = {**_SALON_JOBS, "SENTRY": True, "STRICT": False}
INSTALLED_APPS = [*_INSTALLED_APPS, "rest_framework"]  # for the templates of its browsable API
TASKS = aliases.TASKS
