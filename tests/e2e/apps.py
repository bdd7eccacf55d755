"""App that patches the worker processes of the tests, by PATCHES in ``worker_settings``."""

from __future__ import annotations

from pkgutil import resolve_name

from django.apps import AppConfig
from django.conf import settings


class EndToEndConfig(AppConfig):
    """App config that replaces constants, named by dotted path, so that tests need not wait as long."""

    name = "tests.e2e"

    def ready(self) -> None:
        """Replace them, in the supervisor and in each of its children."""
        for path, value in getattr(settings, "PATCHES", {}).items():
            owner, _, name = path.rpartition(".")
            setattr(resolve_name(owner), name, value)
