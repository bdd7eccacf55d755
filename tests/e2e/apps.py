"""App that patches the worker processes of the tests, by PATCHES and DIES in ``worker_settings``."""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name
from typing import Any

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
        if dies := getattr(settings, "DIES", None):
            _let_die(*dies)


def _let_die(path: str, file: str) -> None:
    """Make the first call of a method, in whatever process, raise SystemExit."""
    owner, _, name = path.rpartition(".")
    really = getattr(resolve_name(owner), name)

    def call(*args: Any, **options: Any) -> Any:
        try:
            Path(file).unlink()
        except FileNotFoundError:
            return really(*args, **options)
        raise SystemExit(0)

    setattr(resolve_name(owner), name, call)
