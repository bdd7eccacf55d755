"""Settings of the plain project or of the demo with roles, as the environment says, without migrations in tests."""

import environ

_env = environ.Env()
_without = _env.str("WITHOUT_MIGRATIONS", "")
if _env.bool("WITH_ROLES"):
    from project.settings import *  # noqa: F403
    from project.settings import INSTALLED_APPS, SALON_JOBS

    DATABASES = {"default": _env.db_url("ONE_USER_URL")}
    SALON_JOBS = {**SALON_JOBS, "OPERATOR_DATABASE": None}
else:
    from tests.migrations.plain_settings import *  # noqa: F403
    from tests.migrations.plain_settings import DATABASES, INSTALLED_APPS

if _without == "in tests":
    DATABASES["default"]["TEST"] = {"MIGRATE": False}
MIGRATION_MODULES = dict.fromkeys(name.rpartition(".")[2] for name in INSTALLED_APPS) if _without == "always" else {}
