"""Settings of a project whose jobs are on a second PostgreSQL database, beside SQLite and a third one."""

import environ

_env = environ.Env()
SECRET_KEY = "for tests only"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.contenttypes", "pgtrigger", "salon_jobs", "tests.migrations.plain"]
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": _env.str("SQLITE_FILE")},
    "jobs": _env.db_url("ONE_USER_URL"),
    "jobs_again": _env.db_url("ONE_USER_URL"),
    "other": _env.db_url("OTHER_URL"),
}
if "POOLER_PORT" in _env:  # behind which "jobs" is, and "jobs_again" is not
    DATABASES["jobs"] = {**DATABASES["jobs"], "HOST": "127.0.0.1", "PORT": _env.int("POOLER_PORT")}
DATABASE_ROUTERS = _env.list("ROUTERS", default=["salon_jobs.db.router.JobTablesRouter"])
SALON_JOBS = {"DATABASE": "jobs"}
