"""Settings of the plain project with stores, whose one user keeps its tables in a schema of its own."""

import environ

from tests.migrations.tenants_settings import *  # noqa: F403

PGTRIGGER_SCHEMA = environ.Env().str("TRIGGERS_IN", "public")
