"""The one setting ``SALON_JOBS``, read and validated only here.

Its keys are in ``schema.py``, which loads when the first one is read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import DEFAULT_DB_ALIAS

from salon_jobs.core import lazy_names, redaction

try:
    import psycopg  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ImportError as missing:
    raise ImproperlyConfigured(
        f"salon_jobs needs psycopg 3 and the library libpq: pip install 'salon-jobs[binary]', which brings both, or"
        f" install the system's libpq, on Debian with: apt-get install libpq5 ({missing})"
    ) from missing

if TYPE_CHECKING:
    from salon_jobs.conf.schema import Roles as Roles
    from salon_jobs.conf.schema import Settings as Settings
else:
    __getattr__ = lazy_names(__name__, {"Roles": "schema", "Settings": "schema"})

T = TypeVar("T")


def _load() -> Settings:
    from salon_jobs.conf.schema import read_settings  # noqa: PLC0415

    return read_settings(getattr(django_settings, "SALON_JOBS", {}), aliases=django_settings.DATABASES)


def middleware() -> tuple[str, ...]:
    """Return the dotted paths of Django's MIDDLEWARE, in order."""
    return tuple(django_settings.MIDDLEWARE)


def has_urls() -> bool:
    """Return whether the project has views: a project of workers only needs no ROOT_URLCONF."""
    return bool(getattr(django_settings, "ROOT_URLCONF", None))


def cache_settings() -> tuple[dict[str, dict[str, Any]], str, str | None]:
    """Return Django's CACHES, the alias in which middleware caches pages, and that of sessions if a cache has them."""
    in_cache = django_settings.SESSION_ENGINE.rpartition(".")[2] in ("cache", "cached_db")
    sessions = django_settings.SESSION_CACHE_ALIAS if in_cache else None
    return django_settings.CACHES, django_settings.CACHE_MIDDLEWARE_ALIAS, sessions


def task_backends() -> set[str]:
    """Return the dotted paths of the backends in TASKS, except Django's own."""
    given: dict[str, dict[str, Any]] = getattr(django_settings, "TASKS", {})
    paths = (parameters.get("BACKEND", "") for parameters in given.values())
    return {path for path in paths if not path.startswith(("django.tasks.", "django_tasks."))}


def is_given(key: str) -> bool:
    """Return whether the settings contain a key that is not None, without reading the others."""
    return getattr(django_settings, "SALON_JOBS", {}).get(key) is not None


def named_aliases() -> tuple[str, ...]:
    """Return the names of the databases that the settings give, or would by default, without reading the others."""
    given = getattr(django_settings, "SALON_JOBS", {})
    names = (given.get("DATABASE", DEFAULT_DB_ALIAS), given.get("OPERATOR_DATABASE"))
    return tuple(name for name in names if isinstance(name, str))


def given_keys(section: str) -> set[str]:
    """Return the keys that the settings contain in one nested section, with any values."""
    return set(getattr(django_settings, "SALON_JOBS", {}).get(section, ()))


def store_arguments() -> tuple[str, ...]:
    """Return the argument names that a store task's handler may use for its store: ``store_id``, or the store model's.

    ``accounts.SalonChain`` allows ``salon_chain_id`` and ``salonchain_id``. Reads no other setting.
    """
    model = str(getattr(django_settings, "SALON_JOBS", {}).get("STORE_MODEL") or "store").rpartition(".")[2]
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", model)
    return tuple(dict.fromkeys(("store_id", f"{snake.lower()}_id", f"{model.lower()}_id")))


def is_strict() -> bool:
    """Return whether ``STRICT`` applies: as it is set, or else with DEBUG and in tests."""
    if settings.strict is not None:
        return settings.strict
    return debug() or in_tests()


def in_tests() -> bool:
    """Return whether Django's test runner or pytest-django is running: they collect the mails of tests in an outbox."""
    return hasattr(sys.modules.get("django.core.mail"), "outbox")


def is_eager() -> bool:
    """Return whether ``EAGER`` applies: only with DEBUG, and where one database user does everything."""
    return is_given("EAGER") and settings.eager and settings.roles.one_user and debug()


def debug() -> bool:
    """Return Django's DEBUG."""
    return bool(django_settings.DEBUG)


def has_logging() -> bool:
    """Return whether the settings contain Django's LOGGING."""
    return bool(django_settings.LOGGING)


def uses_time_zones() -> bool:
    """Return whether Django uses time zones (USE_TZ)."""
    return bool(django_settings.USE_TZ)


class _Lazy:
    """Proxy that loads settings at first use, and again after Django's test tools change them."""

    def __init__(self, load: Callable[[], object]) -> None:
        self._load = load
        setting_changed.connect(self._reset)

    def __getattr__(self, name: str) -> Any:
        # Called only for missing attributes: once loaded, a setting is an ordinary attribute, and as cheap.
        loaded = self._load()
        value = getattr(loaded, name)
        self.__dict__.update({name: getattr(loaded, name) for name in dir(loaded) if not name.startswith("_")})
        return value

    def _reset(self, *, setting: str, **_: object) -> None:
        if setting in ("SALON_JOBS", "DATABASES"):
            load = self._load
            self.__dict__.clear()
            self._load = load


def section(key: str, kind: type[T]) -> T:
    """Return a section of ``SALON_JOBS`` that is declared outside of ``conf``. It is read at first use."""

    def load() -> T:
        from salon_jobs.conf.reader import read_section  # noqa: PLC0415

        given = getattr(django_settings, "SALON_JOBS", {}).get(key, {})
        return read_section(kind, given, path=f"SALON_JOBS[{key!r}]")

    return cast("T", _Lazy(load))


if TYPE_CHECKING:
    settings: Settings
else:
    settings = _Lazy(_load)
redaction.set_pattern_source(lambda: settings.redact)
