"""The keys of ``SALON_JOBS``, how each is read, and what they must be together."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import Any, ClassVar, cast

from django.db import DEFAULT_DB_ALIAS
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from salon_jobs.conf import LEAST_BOUND, REQUEST_STORES
from salon_jobs.conf.reader import (
    count,
    duration,
    flag,
    log_level,
    matching,
    names,
    one_of,
    optional,
    read_section,
    setting,
    text,
    texts,
)
from salon_jobs.conf.sections import BROKERS, ConsumerSettings, LoggingSettings, OutboxSettings, read_consumers
from salon_jobs.core.backoff import Backoff
from salon_jobs.core.errors import ConfigurationError, require_within
from salon_jobs.core.redaction import SENSITIVE

_URL = "a URL such as postgresql://role:password@host:5432/database"
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_$]{0,62}")


@dataclass(frozen=True, slots=True)
class Roles:
    """Names of this deployment's database roles (least privilege, one role per purpose)."""

    migrator: str = "migrator"
    web: str = "app"
    worker: str = "worker_runtime"
    operator: str = "jobs_operator"
    fan_out_owner: str = "worker_fanout_owner"
    # Reads the rows of all stores and changes nothing; there is none unless it is named.
    support: str | None = None
    # NOLOGIN owners of the host application's own narrow SECURITY DEFINER functions.
    extra_owners: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise ConfigurationError if one role has two purposes."""
        if any(self.names.count(name) > 1 for name in self.names):
            raise ConfigurationError("SALON_JOBS['ROLES'] gives one role two purposes; each needs its own")

    @property
    def names(self) -> tuple[str, ...]:
        return (*filter(None, (getattr(self, key) for key in _ROLE_KEYS)), *self.extra_owners)

    @property
    def owners(self) -> tuple[str, ...]:
        """The owners of narrow functions, as which nobody logs in."""
        return (self.fan_out_owner, *self.extra_owners)

    @property
    def runtime(self) -> tuple[str, ...]:
        """The roles that log in to work and own nothing."""
        return (self.web, self.worker, self.operator, *filter(None, [self.support]))


def _url(value: Any) -> str:
    """Read a database URL. Errors do not quote libpq's messages, which repeat the password."""
    url = text(value)
    scheme, separator, _ = url.partition("://")
    if separator and scheme not in ("postgresql", "postgres"):
        raise ValueError(f"{_URL}, with that scheme instead of {scheme!r}")
    try:
        conninfo_to_dict(url)
    except ProgrammingError:
        raise ValueError(_URL) from None
    return url


def _backoff(value: Any) -> Backoff:
    if not isinstance(value, Backoff):
        raise ValueError("a salon_jobs.core.backoff.Backoff")  # noqa: TRY004 - the section's reader adds the field to it
    return value


def _listen(value: Any) -> bool | str:
    try:
        return _url(value) if isinstance(value, str) else flag(value)
    except ValueError as error:
        raise ValueError(f"True, False or {error}" if isinstance(value, str) else "True, False or a URL") from None


# Keys of ROLES that name one role each.
_ROLE_KEYS = tuple(field.name for field in fields(Roles) if field.name != "extra_owners")


def _passwords(value: Any) -> Mapping[str, str]:
    passwords = texts(value)
    if not passwords.keys() <= set(_ROLE_KEYS):
        raise ValueError(f"a dict of role key ({', '.join(sorted(_ROLE_KEYS))}) to password")
    return passwords


def _paths(value: Any) -> tuple[str, ...]:
    paths = names(value)
    if not all(path.startswith("/") and path.endswith("/") for path in paths):
        raise ValueError("a list of paths that begin and end with a slash, such as '/admin/'")
    return paths


_model = matching(r"\w+\.\w+", "'app_label.Model'")


def _guc(value: Any) -> str:
    name = text(value)
    if not re.fullmatch(r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)+", name):
        raise ValueError("a dotted name such as 'app.current_store_id'")
    if name == _user_guc(name):
        raise ValueError("another name, since this one holds the user's key")
    return name


def _user_guc(store_guc: str) -> str:
    return f"{store_guc.rpartition('.')[0]}.current_user_id"


def _request_store(value: Any) -> str:
    how = text(value)
    if how.startswith("*."):
        if not re.fullmatch(r"\*(\.[a-z0-9-]+)+", how):
            raise ValueError("a domain in lower case, such as '*.salons.example'")
    elif how not in REQUEST_STORES[:-1] and not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", how):
        known = ", ".join(REQUEST_STORES[:-1])
        raise ValueError(f"one of {known}, a subdomain such as '*.salons.example', or the dotted path of a class")
    return how


def _roles(value: Any) -> Roles:
    if isinstance(value, Roles):
        return value
    if not isinstance(value, dict):
        raise ValueError("a dict of role names")  # noqa: TRY004 - as above
    given: dict[str, Any] = {**cast("dict[str, Any]", value)}
    known = {*_ROLE_KEYS, "extra_owners"}
    if unknown := sorted(map(str, set(given) - known)):
        raise ConfigurationError(f"SALON_JOBS['ROLES'] has unknown keys {unknown}; choose from {sorted(known)}")
    try:
        given["extra_owners"] = names(given.get("extra_owners", ()))
        roles = Roles(**given)
    except ValueError as error:
        raise ConfigurationError(f"SALON_JOBS['ROLES']['extra_owners'] must be {error}") from None
    role_names: tuple[Any, ...] = roles.names
    for name in role_names:
        if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
            raise ConfigurationError(f"SALON_JOBS['ROLES']: {name!r} is not a plain lower-case role name")
    return roles


def _part(kind: type[Any], key: str) -> Any:
    """Declare a nested section with keys of its own."""
    return setting(kind, partial(read_section, kind, path=f"SALON_JOBS[{key!r}]"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The validated settings; the field names in upper case are the keys of ``SALON_JOBS``.

    Without ``store_model`` this is a job queue without tenants. Without ``roles`` there is one database user and no RLS
    on the job tables, and a forbidden role is only a warning. Durations are a ``timedelta`` or a number of seconds.
    """

    # The function that lists the stores; migrations create it.
    fan_out_function: ClassVar[str] = "public.list_store_ids_for_fan_out"

    store_model: str | None = setting(None, optional(_model))
    store_guc: str = setting("app.current_store_id", _guc)
    request_store: str = setting("membership", _request_store)
    request_header: str = setting("X-Store-Id", matching(r"[A-Za-z0-9-]+", "the name of a header"))
    request_session_key: str = setting("store_id", text)
    request_without_store: str = setting("choose", one_of("choose", "refuse", "continue"))
    paths_without_store: tuple[str, ...] = setting((), _paths)
    strict: bool | None = setting(None, optional(flag))
    eager: bool = setting(False, flag)
    eager_limit: int = setting(100, count(1, 1_000_000))
    membership_model: str | None = setting(None, optional(_model))
    database: str = setting(DEFAULT_DB_ALIAS, text)
    operator_database: str | None = setting(None, optional(text))
    roles: Roles | None = setting(None, optional(_roles))
    bootstrap_url: str | None = setting(None, optional(_url), secret=True)
    role_passwords: Mapping[str, str] = setting(dict[str, str], _passwords, secret=True)
    on_drift: str = setting("warn", one_of("refuse", "warn", "ignore"))
    listen: bool | str = setting(True, _listen, secret=True)
    poll_interval: timedelta = setting(timedelta(seconds=1), duration)
    process_silent_after: timedelta = setting(timedelta(seconds=15), duration)
    shutdown_grace: timedelta = setting(timedelta(seconds=30), duration)
    concurrency: int = setting(8, count(1, 1000))
    async_concurrency: int = setting(100, count(1, 5000))
    processes: int | None = setting(None, optional(count(1, 1000)))
    store_concurrency: int | None = setting(None, optional(count(1, 1_000_000)))
    retain_succeeded: timedelta | None = setting(timedelta(0), optional(partial(duration, zero=True)))
    keep_log: str = setting("failed", one_of("failed", "all", "none"))
    result_retention: timedelta = setting(timedelta(days=1), partial(duration, zero=True))
    retain_failed: timedelta | None = setting(timedelta(days=90), optional(duration))
    max_attempts: int = setting(25, count(1, 32767))
    terminate_after_timeouts: int | None = setting(None, optional(count(1, 1_000_000)))
    max_jobs_per_child: int | None = setting(None, optional(count(1, 1_000_000_000)))
    max_payload: int = setting(1_048_576, count(LEAST_BOUND, 67_108_864))
    backoff: Backoff = setting(Backoff, _backoff)
    logging: LoggingSettings = _part(LoggingSettings, "LOGGING")
    sentry: bool | None = setting(None, optional(flag))
    sentry_level: str | None = setting("WARNING", optional(log_level))
    redact: tuple[str, ...] = setting(SENSITIVE, names)
    trace_link: str | None = setting(
        None, optional(matching(r"(?s)https?://.*\{trace_id\}.*", "an address with {trace_id} in it"))
    )
    sentry_monitors: bool = setting(False, flag)
    tracing: bool = setting(False, flag)
    outbox: OutboxSettings = _part(OutboxSettings, "OUTBOX")
    consumers: Mapping[str, ConsumerSettings] = setting(dict[str, ConsumerSettings], read_consumers)

    @property
    def reader_database(self) -> str:
        """The alias on which operators see the jobs of all stores."""
        return self.operator_database or self.database

    @property
    def store_domain(self) -> str | None:
        """The domain below which requests name their store as a subdomain, or None."""
        return self.request_store.removeprefix("*.") if self.request_store.startswith("*.") else None

    @property
    def request_resolver(self) -> str:
        """The way to find the store of a request: one of ``REQUEST_STORES``, or a dotted path."""
        return self.request_store if self.store_domain is None else "subdomain"

    @property
    def retain_cancelled(self) -> timedelta | None:
        """How long cancelled jobs are kept: a week, since fewer people ask for them, but no longer than failed."""
        return None if self.retain_failed is None else min(timedelta(days=7), self.retain_failed)

    @property
    def keep_succeeded(self) -> bool:
        """Whether the row of a job that succeeds is kept, for ``retain_succeeded``."""
        return self.retain_succeeded is None or self.retain_succeeded > timedelta(0)

    @property
    def user_guc(self) -> str:
        """The PostgreSQL setting that holds the user's key while memberships are read, next to the store's."""
        return _user_guc(self.store_guc)

    @property
    def heartbeat_interval(self) -> timedelta:
        """How often a process writes its heartbeat; it may miss four before it is declared dead."""
        return self.process_silent_after / 5

    @property
    def shutdown_interrupt_after(self) -> timedelta:
        """How long jobs may run on after a stop signal: all but five seconds of the grace, or half of a short one."""
        return max(self.shutdown_grace - timedelta(seconds=5), self.shutdown_grace / 2)

    @property
    def stale_after_s(self) -> float:
        """Seconds without a poll after which a loop is stale: 30, or two silence periods if those are longer."""
        return max(30.0, 2 * self.process_silent_after.total_seconds())

    def require_alive(self, age_s: float, complaint: str) -> None:
        """Raise NotReady with the complaint if a loop of this process is stale."""
        require_within(self.stale_after_s, age_s, complaint)


def read_settings(given: object, *, aliases: Collection[str]) -> Settings:
    """Build the settings from the dict ``SALON_JOBS``, and validate the brokers' sections in it.

    Raises ConfigurationError naming the key.
    """
    brokers = import_module(BROKERS)
    loaded = read_section(Settings, given, path="SALON_JOBS", others=brokers.sections())
    for key, alias in (("DATABASE", loaded.database), ("OPERATOR_DATABASE", loaded.operator_database)):
        if alias is not None and alias not in aliases:
            raise ConfigurationError(f"SALON_JOBS[{key!r}] names {alias!r}, which is not in DATABASES")
    loaded.outbox.check_rates({service for broker in brokers.configured() for service in broker.publishers})
    return loaded
