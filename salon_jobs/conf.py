"""Reads the one setting ``SALON_JOBS``, validates it, and is alone in doing so."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from django.conf import settings as django_settings
from django.core.signals import setting_changed
from django.db import DEFAULT_DB_ALIAS
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from salon_jobs.core.backoff import Backoff
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.core.redaction import SENSITIVE
from salon_jobs.sections.azure import AzureSettings
from salon_jobs.sections.consumers import ConsumerSettings, read_consumers
from salon_jobs.sections.nats import NatsSettings
from salon_jobs.sections.outbox import OutboxSettings
from salon_jobs.sections.readiness import ReadinessSettings
from salon_jobs.sections.reading import read_section
from salon_jobs.sections.sns import SnsSettings

_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_$]{0,62}")


@dataclass(frozen=True, slots=True)
class Roles:
    """Names the database roles of this deployment (SPEC: least privilege, one role a purpose)."""

    migrator: str = "migrator"
    web: str = "app"
    worker: str = "worker_runtime"
    operator: str = "jobs_operator"
    fan_out_owner: str = "worker_fanout_owner"

    @property
    def runtime(self) -> tuple[str, ...]:
        """Return the roles that log in to work, and own nothing."""
        return (self.web, self.worker, self.operator)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Holds the validated settings; the field names in upper case are the keys of ``SALON_JOBS``.

    ``store_model`` unset: a plain job queue without tenants. ``roles`` unset: one database user, no RLS on the job
    tables, a forbidden role is a warning. Durations are ``timedelta`` or a number of seconds.
    """

    store_model: str | None = None
    store_guc: str = "app.current_store_id"
    user_guc: str = "app.current_user_id"
    request_store: str = "membership"
    request_without_store: str = "refuse"
    paths_without_store: tuple[str, ...] = ()
    membership_model: str | None = None
    membership_user_field: str = "user"
    membership_store_field: str = "store"
    store_header: str = "X-Store-Id"
    store_session_key: str = "store_id"
    store_domain: str | None = None
    fan_out_function: str = "public.list_store_ids_for_fan_out"
    database: str = DEFAULT_DB_ALIAS
    cross_database_enqueue: str = "refuse"
    operator_database: str | None = None
    roles: Roles | None = None
    bootstrap_url: str | None = None
    role_passwords: Mapping[str, str] = field(default_factory=dict[str, str])
    extra_owner_roles: tuple[str, ...] = ()
    on_drift: str = "warn"
    listen: bool = True
    listen_url: str | None = None
    poll_interval: timedelta = timedelta(seconds=1)
    heartbeat_interval: timedelta = timedelta(seconds=3)
    process_silent_after: timedelta = timedelta(seconds=15)
    shutdown_interrupt_after: timedelta = timedelta(seconds=25)
    shutdown_grace: timedelta = timedelta(seconds=30)
    concurrency: int = 8
    store_concurrency: int | None = None
    keep_succeeded: bool = False
    retain_succeeded: timedelta | None = timedelta(days=1)
    retain_cancelled: timedelta | None = timedelta(days=7)
    retain_failed: timedelta | None = timedelta(days=90)
    retain_cron_ticks: timedelta | None = timedelta(days=30)
    retain_stats: timedelta | None = timedelta(days=14)
    max_attempts: int = 25
    timeout_grace: timedelta = timedelta(seconds=10)
    cancel_grace: timedelta = timedelta(seconds=5)
    terminate_after_timeouts: int | None = None
    backoff: Backoff = field(default_factory=Backoff)
    sentry_payload: bool = False
    redact: tuple[str, ...] = SENSITIVE
    trace_link: str | None = None
    sentry_monitors: bool = False
    tracing: bool = False
    outbox: OutboxSettings = field(default_factory=OutboxSettings)
    nats: NatsSettings = field(default_factory=NatsSettings)
    sns: SnsSettings = field(default_factory=SnsSettings)
    azure: AzureSettings = field(default_factory=AzureSettings)
    consumers: Mapping[str, ConsumerSettings] = field(default_factory=dict[str, ConsumerSettings])
    readiness: ReadinessSettings = field(default_factory=ReadinessSettings)

    @property
    def reader_database(self) -> str:
        """Name the alias through which operators see the jobs of all stores."""
        return self.operator_database or self.database


def _load() -> Settings:
    raw: Any = getattr(django_settings, "SALON_JOBS", {})
    if not isinstance(raw, dict):
        raise ConfigurationError("SALON_JOBS must be a dict")
    known = {f.name.upper(): f.name for f in fields(Settings)}
    values: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", raw).items():
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(sorted(known))}"
            raise ConfigurationError(f"SALON_JOBS has an unknown key {key!r}{hint}")
        values[known[key]] = _converted(key, value)
    loaded = Settings(**values)
    _validate(loaded)
    return loaded


_DURATIONS = {
    "POLL_INTERVAL", "HEARTBEAT_INTERVAL", "PROCESS_SILENT_AFTER", "SHUTDOWN_INTERRUPT_AFTER", "SHUTDOWN_GRACE",
    "TIMEOUT_GRACE", "CANCEL_GRACE",
}  # fmt: skip
# None keeps for ever. The longest that every server can still subtract from its own time.
_RETENTIONS = {"RETAIN_SUCCEEDED", "RETAIN_CANCELLED", "RETAIN_FAILED", "RETAIN_CRON_TICKS", "RETAIN_STATS"}
_LONGEST_RETENTION = timedelta(days=365_000)
_STRINGS = {
    "STORE_GUC", "USER_GUC", "FAN_OUT_FUNCTION", "DATABASE", "REQUEST_STORE", "MEMBERSHIP_USER_FIELD",
    "MEMBERSHIP_STORE_FIELD", "STORE_HEADER", "STORE_SESSION_KEY",
}  # fmt: skip
_OPTIONAL_STRINGS = {
    "STORE_MODEL", "OPERATOR_DATABASE", "BOOTSTRAP_URL", "LISTEN_URL", "MEMBERSHIP_MODEL", "STORE_DOMAIN",
    "TRACE_LINK",
}  # fmt: skip
_FLAGS = {"KEEP_SUCCEEDED", "LISTEN", "SENTRY_PAYLOAD", "SENTRY_MONITORS", "TRACING"}
_CHOICES = {
    "CROSS_DATABASE_ENQUEUE": ("refuse", "warn", "allow"),
    "ON_DRIFT": ("refuse", "warn", "ignore"),
    "REQUEST_WITHOUT_STORE": ("refuse", "continue"),
}
# Nested parts, each with keys of its own.
_SECTIONS: Mapping[str, type[Any]] = {
    "OUTBOX": OutboxSettings, "NATS": NatsSettings, "SNS": SnsSettings, "AZURE": AzureSettings,
    "READINESS": ReadinessSettings,
}  # fmt: skip
# How a request finds its store; anything else is the dotted path of a class.
REQUEST_STORES = ("membership", "header", "session", "subdomain")
_COUNTS = {"CONCURRENCY": 1000, "MAX_ATTEMPTS": 32767}
_OPTIONAL_COUNTS = {"TERMINATE_AFTER_TIMEOUTS": 1_000_000, "STORE_CONCURRENCY": 1_000_000}


def _converted(key: str, value: Any) -> Any:
    if key in _DURATIONS:
        value = _duration(value)
        if not isinstance(value, timedelta) or value <= timedelta(0):
            raise _wrong(key, value, "a timedelta or a number of seconds, more than zero")
    elif key in _RETENTIONS and value is not None:
        value = _duration(value)
        if not isinstance(value, timedelta) or not timedelta(0) < value <= _LONGEST_RETENTION:
            raise _wrong(key, value, "None (for ever), or a timedelta or number of seconds from zero to 1,000 years")
    elif key in _STRINGS or (key in _OPTIONAL_STRINGS and value is not None):
        if not isinstance(value, str) or not value:
            raise _wrong(key, value, "a string that is not empty")
        if key.endswith("_URL"):
            _require_url(key, value)
    elif key in _CHOICES:
        if value not in _CHOICES[key]:
            raise _wrong(key, value, f"one of {', '.join(_CHOICES[key])}")
    elif key in _FLAGS:
        if not isinstance(value, bool):
            raise _wrong(key, value, "True or False")
    elif key in _COUNTS or (key in _OPTIONAL_COUNTS and value is not None):
        most = {**_COUNTS, **_OPTIONAL_COUNTS}[key]
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise _wrong(key, value, f"a whole number from 1 to {most}")
    elif key == "ROLES" and value is not None:
        return _roles(value)
    elif key in _SECTIONS:
        return read_section(_SECTIONS[key], value, path=f"SALON_JOBS[{key!r}]")
    elif key == "CONSUMERS":
        return read_consumers(value, path=f"SALON_JOBS[{key!r}]")
    elif key == "BACKOFF" and not isinstance(value, Backoff):
        raise _wrong(key, value, "a salon_jobs.core.backoff.Backoff")
    elif key == "ROLE_PASSWORDS":
        return _passwords(key, value)
    elif key == "EXTRA_OWNER_ROLES":
        return _names(key, value)
    elif key == "REDACT":
        return _patterns(key, value)
    elif key == "PATHS_WITHOUT_STORE":
        return _paths(key, value)
    return value


def _require_url(key: str, value: str) -> None:
    try:
        conninfo_to_dict(value)
    except ProgrammingError:
        # What is wrong is not told, nor kept as a cause: libpq's words repeat the URL, and the password with it.
        raise _wrong(key, value, "a URL such as postgresql://role:password@host:5432/database") from None


def _duration(value: Any) -> Any:
    """Return a number of seconds as a timedelta; anything else, and a number too large for one, as it is."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return value
    try:
        return timedelta(seconds=value)
    except (ValueError, OverflowError):
        return value


def _passwords(key: str, value: Any) -> dict[str, str]:
    known = {f.name for f in fields(Roles)}
    if not _is_dict(value) or not all(name in known and isinstance(value[name], str) for name in value):
        raise _wrong(key, value, f"a dict of role key ({', '.join(sorted(known))}) to password")
    return dict(value)


def _is_dict(value: object) -> bool:
    return isinstance(value, dict)


def _names(key: str, value: Any) -> tuple[str, ...]:
    names: tuple[Any, ...] = tuple(value) if type(value) in (list, tuple) else (None,)
    if not all(isinstance(name, str) and _IDENTIFIER.fullmatch(name) for name in names):
        raise _wrong(key, value, "a list of plain lower-case role names")
    return names


def _patterns(key: str, value: Any) -> tuple[str, ...]:
    patterns: tuple[Any, ...] = tuple(value) if type(value) in (list, tuple) else (None,)
    if not all(isinstance(pattern, str) and pattern for pattern in patterns):
        raise _wrong(key, value, "a list of names of keys, such as '*password*'")
    return patterns


def _paths(key: str, value: Any) -> tuple[str, ...]:
    paths: tuple[Any, ...] = tuple(value) if type(value) in (list, tuple) else (None,)
    if not all(isinstance(path, str) and path.startswith("/") and path.endswith("/") for path in paths):
        raise _wrong(key, value, "a list of paths that begin and end with a slash, such as '/admin/'")
    return paths


def _wrong(key: str, value: object, expected: str) -> ConfigurationError:
    shown = type(value).__name__ if "PASSWORD" in key or "URL" in key else repr(value)
    return ConfigurationError(f"SALON_JOBS[{key!r}] must be {expected}, not {shown}")


def _roles(value: Any) -> Roles:
    if isinstance(value, Roles):
        return value
    if not isinstance(value, dict):
        raise _wrong("ROLES", value, "a dict of role names, or None for one database user")
    given = cast("dict[str, Any]", value)
    known = {f.name for f in fields(Roles)}
    if unknown := set(given) - known:
        shown = sorted(map(str, unknown))
        raise ConfigurationError(f"SALON_JOBS['ROLES'] has unknown keys {shown}; known are {sorted(known)}")
    roles = Roles(**given)
    names = [getattr(roles, name) for name in known]
    for name in names:
        if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
            raise ConfigurationError(f"SALON_JOBS['ROLES']: {name!r} is not a plain lower-case role name")
    if len(set(names)) != len(names):
        raise ConfigurationError("SALON_JOBS['ROLES'] gives one role two purposes; each needs its own")
    return roles


def _validate(loaded: Settings) -> None:
    for key, guc in (("STORE_GUC", loaded.store_guc), ("USER_GUC", loaded.user_guc)):
        if not re.fullmatch(r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)+", guc):
            raise ConfigurationError(f"SALON_JOBS[{key!r}] must be a dotted name such as 'app.current_store_id'")
    if loaded.store_guc == loaded.user_guc:
        raise ConfigurationError("SALON_JOBS['USER_GUC'] must be another name than STORE_GUC")
    if not re.fullmatch(r"[a-z_][a-z0-9_]*\.[a-z_][a-z0-9_]*", loaded.fan_out_function):
        raise ConfigurationError("SALON_JOBS['FAN_OUT_FUNCTION'] must be schema.name in lower case")
    for key, model in (("STORE_MODEL", loaded.store_model), ("MEMBERSHIP_MODEL", loaded.membership_model)):
        if model is not None and not re.fullmatch(r"\w+\.\w+", model):
            raise ConfigurationError(f"SALON_JOBS[{key!r}] must be 'app_label.Model'")
    _validate_request_store(loaded)
    link = loaded.trace_link
    if link is not None and not (link.startswith(("https://", "http://")) and "{trace_id}" in link):
        raise ConfigurationError("SALON_JOBS['TRACE_LINK'] must be an address with {trace_id} in it")
    if loaded.shutdown_interrupt_after >= loaded.shutdown_grace:
        raise ConfigurationError("SALON_JOBS['SHUTDOWN_INTERRUPT_AFTER'] must be less than SHUTDOWN_GRACE")
    if loaded.heartbeat_interval * 2 > loaded.process_silent_after:
        raise ConfigurationError("SALON_JOBS['HEARTBEAT_INTERVAL'] must be at most half of PROCESS_SILENT_AFTER")
    for key, alias in (("DATABASE", loaded.database), ("OPERATOR_DATABASE", loaded.operator_database)):
        if alias is not None and alias not in django_settings.DATABASES:
            raise ConfigurationError(f"SALON_JOBS[{key!r}] names {alias!r}, which is not in DATABASES")


def _validate_request_store(loaded: Settings) -> None:
    how = loaded.request_store
    if how not in REQUEST_STORES and not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", how):
        known = ", ".join(REQUEST_STORES)
        raise ConfigurationError(f"SALON_JOBS['REQUEST_STORE'] must be one of {known}, or the dotted path of a class")
    if how == "subdomain" and loaded.store_domain is None:
        raise ConfigurationError("SALON_JOBS['STORE_DOMAIN'] must name the domain that the stores' names stand before")
    if loaded.store_domain is not None and not re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)*", loaded.store_domain):
        raise ConfigurationError("SALON_JOBS['STORE_DOMAIN'] must be a domain in lower case, such as 'salons.example'")
    if not re.fullmatch(r"[A-Za-z0-9-]+", loaded.store_header):
        raise ConfigurationError("SALON_JOBS['STORE_HEADER'] must be the name of a header, such as 'X-Store-Id'")


def middleware() -> tuple[str, ...]:
    """Return the dotted paths of Django's MIDDLEWARE, in its order."""
    return tuple(django_settings.MIDDLEWARE)


class _LazySettings:
    """Loads the settings at first use and again after Django's test tools changed them."""

    def __getattr__(self, name: str) -> Any:
        # Called for what is not there yet: from then on a setting is an ordinary attribute, and as cheap.
        loaded = _load()
        value = getattr(loaded, name)
        self.__dict__.update({field.name: getattr(loaded, field.name) for field in fields(Settings)})
        return value

    def reset(self, *, setting: str, **_: object) -> None:
        if setting in ("SALON_JOBS", "DATABASES"):
            self.__dict__.clear()


if TYPE_CHECKING:
    settings: Settings
else:
    settings = _LazySettings()
    setting_changed.connect(settings.reset)
