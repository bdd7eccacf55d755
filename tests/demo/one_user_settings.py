"""Settings of the demo project for a database with one user, who owns everything."""

from project.settings import *  # noqa: F403
from project.settings import SALON_JOBS as _WITH_ROLES

SALON_JOBS = {**_WITH_ROLES, "ROLES": None}
