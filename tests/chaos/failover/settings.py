"""Settings of the processes that go through failovers: the chaos ones, with an app of tasks and one page."""

from __future__ import annotations

from tests.chaos.settings import *  # noqa: F403
from tests.chaos.settings import INSTALLED_APPS as _INSTALLED_APPS
from tests.chaos.settings import env

INSTALLED_APPS = [*_INSTALLED_APPS, "tests.chaos.failover"]
ROOT_URLCONF = "tests.chaos.failover.urls"
# Folder with the file to which handlers write that they run, and with the gates that some of them wait for.
OUTSIDE = env.str("FAILOVER_OUTSIDE", "")
