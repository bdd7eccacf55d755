"""Settings of the demo project with one database user that owns everything."""

import environ

from project.settings import *  # noqa: F403
from project.settings import SALON_JOBS as _WITH_ROLES

DATABASES = {"default": environ.Env().db_url("ONE_USER_URL")}
SALON_JOBS = {**_WITH_ROLES, "ROLES": None, "OPERATOR_DATABASE": None}
