"""Settings of the plain project with an app of stores; the environment selects its migrations."""

import environ

from tests.migrations.plain_settings import *  # noqa: F403
from tests.migrations.plain_settings import INSTALLED_APPS as _PLAIN_APPS

_env = environ.Env()
INSTALLED_APPS = [*_PLAIN_APPS, "tests.migrations.tenants"]
MIGRATION_MODULES = {"tenants": f"tests.migrations.tenants.{_env.str('TENANTS_MIGRATIONS', 'migrations')}"}
SALON_JOBS = {"STORE_MODEL": _env.str("TENANTS_STORE_MODEL", "") or None}
TENANTS_KEY = _env.str("TENANTS_KEY", "uuid")
