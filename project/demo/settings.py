"""Project settings plus the demo's own: consumers of the project's own messages, and their tasks."""

from __future__ import annotations

from project.settings import *  # noqa: F403
from project.settings import INSTALLED_APPS as PROJECT_APPS
from project.settings import RESERVATIONS_DESTINATION, UPLOADS_DESTINATION
from project.settings import SALON_JOBS as PROJECT_JOBS

INSTALLED_APPS = [*PROJECT_APPS, "project.demo"]
SALON_JOBS = {
    **PROJECT_JOBS,
    "CONSUMERS": {
        "confirmations": {
            "SOURCE": RESERVATIONS_DESTINATION,
            "TASKS": {"reservation.confirmed": "record-confirmation"},
        },
        "uploads": {"SOURCE": UPLOADS_DESTINATION, "TASKS": {"file.uploaded": "parse-upload"}},
    },
}
