"""Settings of the plain project with an app of stores, whose table the environment may order to come first."""

import environ

from tests.migrations.plain_settings import *  # noqa: F403
from tests.migrations.plain_settings import INSTALLED_APPS as _PLAIN_APPS

_env = environ.Env()
INSTALLED_APPS = [*_PLAIN_APPS, "tests.migrations.tenants"]
SALON_JOBS = {"STORE_MODEL": _env.str("TENANTS_STORE_MODEL", "") or None}
TENANTS_FIRST = _env.bool("TENANTS_FIRST", default=False)
TENANTS_KEY = _env.str("TENANTS_KEY", "uuid")
