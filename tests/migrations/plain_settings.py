"""Settings of a project without tenants and with one database user: a plain job queue."""

import environ

_env = environ.Env()
SECRET_KEY = "for tests only"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.contenttypes", "pgtrigger", "salon_jobs", "tests.migrations.plain"]
DATABASES = {"default": _env.db_url("ONE_USER_URL")}
