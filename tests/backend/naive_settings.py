"""Settings of a worker in a project whose datetimes are naive."""

from __future__ import annotations

from tests.backend.worker_settings import *  # noqa: F403

USE_TZ = False
TIME_ZONE = "Europe/Paris"
