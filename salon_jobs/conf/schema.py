"""Keys of ``SALON_JOBS``, their readers, and the rules across them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import timedelta
from importlib import import_module
from typing import Annotated, Any, ClassVar, Final, Literal

from django.db import DEFAULT_DB_ALIAS
from msgspec import Meta, ValidationError, convert, field
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from salon_jobs.conf.reader import (
    SECRET,
    Duration,
    DurationOrZero,
    Names,
    Section,
    Text,
    Texts,
    log_level,
    names,
    read_section,
    text,
)
from salon_jobs.conf.sections import BROKERS, ConsumerSettings, LoggingSettings, OutboxSettings, read_consumers
from salon_jobs.core.backoff import Backoff
from salon_jobs.core.errors import ConfigurationError, require_within
from salon_jobs.core.redaction import SENSITIVE

_URL = "a URL such as postgresql://role:password@host:5432/database"
# The built-in ways to find the store of a request; any other value is the dotted path of a class.
REQUEST_STORES: Final = ("membership", "header", "session", "subdomain")
# The least value of MAX_PAYLOAD: smaller payloads need not be compared with it.
LEAST_BOUND: Final = 1024
_ROLE_NAME: Final = r"^[a-z_][a-z0-9_$]{0,62}\Z"
_Role = Annotated[str, Meta(pattern=_ROLE_NAME, description="a plain lower-case role name")]


class Roles(Section, frozen=True, rename=None):
    """Names of this deployment's database roles (least privilege, one role per purpose).

    ``ONE_USER`` has none, since nothing depends on the name of the one database user.
    """

    migrator: _Role = "migrator"
    web: _Role = "app"
    worker: _Role = "worker_runtime"
    operator: _Role = "jobs_operator"
    fan_out_owner: _Role = "worker_fanout_owner"
    # Reads the rows of all stores and changes nothing; there is none unless it is named.
    support: _Role | None = None
    # NOLOGIN owners of the host application's own narrow SECURITY DEFINER functions.
    extra_owners: Annotated[tuple[_Role, ...], Meta(description="a list of plain lower-case role names")] = ()

    def __post_init__(self) -> None:
        """Raise ConfigurationError if one role has two purposes."""
        if any(self.names.count(name) > 1 for name in self.names):
            raise ConfigurationError("SALON_JOBS['ROLES'] gives one role two purposes; each needs its own")

    @property
    def one_user(self) -> bool:
        """Whether one database user does everything, and owns the tables."""
        return not self.names

    @property
    def names(self) -> tuple[str, ...]:
        return (*filter(None, (getattr(self, key) for key in _ROLE_KEYS)), *self.extra_owners)

    @property
    def owners(self) -> tuple[str, ...]:
        """The owners of narrow functions, which cannot log in."""
        return (*filter(None, [self.fan_out_owner]), *self.extra_owners)

    @property
    def runtime(self) -> tuple[str, ...]:
        """The roles that log in to work and own nothing."""
        return (*filter(None, [self.web, self.worker, self.operator, self.support]),)


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
        return value if isinstance(value, bool) else _url(value)
    except ValidationError:
        raise
    except ValueError as error:
        raise ValueError(f"True, False or {error}") from None


# Keys of ROLES that name one role each.
_ROLE_KEYS: Final = tuple(key for key in Roles.__struct_fields__ if key != "extra_owners")
ONE_USER: Final = Roles(migrator="", web="", worker="", operator="", fan_out_owner="")


def _passwords(value: Any) -> Mapping[str, str]:
    passwords: dict[str, str] = convert(value, Texts)
    if not passwords.keys() <= set(_ROLE_KEYS):
        raise ValueError(f"a dict of role key ({', '.join(sorted(_ROLE_KEYS))}) to password")
    return passwords


def _paths(value: Any) -> tuple[str, ...]:
    paths = names(value)
    if not all(path.startswith("/") and path.endswith("/") for path in paths):
        raise ValueError("a list of paths that begin and end with a slash, such as '/admin/'")
    return paths


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


_Model = Annotated[str, Meta(pattern=r"^\w+\.\w+\Z", description="'app_label.Model'")]
_Million = Annotated[int, Meta(ge=1, le=1_000_000)]


class Settings(Section, frozen=True):
    """The validated settings; the field names in upper case are the keys of ``SALON_JOBS``.

    Without ``store_model`` this is a job queue without tenants. Without ``roles`` there is one database user and no RLS
    on the job tables, and a forbidden role is only a warning. Durations are a ``timedelta`` or a number of seconds.
    """

    # The function that lists the stores; migrations create it.
    fan_out_function: ClassVar[str] = "public.list_store_ids_for_fan_out"

    store_model: _Model | None = None
    store_guc: Annotated[Text, _guc] = "app.current_store_id"
    request_store: Annotated[Text, _request_store] = "membership"
    request_header: Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]+\Z", description="the name of a header")] = "X-Store-Id"
    request_session_key: Text = "store_id"
    request_without_store: Literal["choose", "refuse", "continue"] = "choose"
    paths_without_store: Annotated[Names, _paths] = ()
    strict: bool | None = None
    eager: bool = False
    eager_limit: _Million = 100
    membership_model: _Model | None = None
    database: Text = DEFAULT_DB_ALIAS
    operator_database: Text | None = None
    named_roles: Roles | None = field(default=None, name="ROLES")
    bootstrap_url: Annotated[Text, _url, SECRET] | None = None
    role_passwords: Annotated[Texts, _passwords, SECRET] = field(default_factory=dict[str, str])
    on_drift: Literal["refuse", "warn", "ignore"] = "warn"
    listen: Annotated[bool | str, Meta(description="True, False or a URL"), _listen, SECRET] = True
    poll_interval: Duration = timedelta(seconds=1)
    process_silent_after: Duration = timedelta(seconds=15)
    late_after: Duration = timedelta(minutes=5)
    shutdown_grace: Duration = timedelta(seconds=30)
    concurrency: Annotated[int, Meta(ge=1, le=1000)] = 8
    async_concurrency: Annotated[int, Meta(ge=1, le=5000)] = 100
    processes: Annotated[int, Meta(ge=1, le=1000)] | None = None
    store_concurrency: _Million | None = None
    retain_succeeded: DurationOrZero | None = timedelta(0)
    keep_log: Literal["failed", "all", "none"] = "failed"
    result_retention: DurationOrZero = timedelta(days=1)
    retain_failed: Duration | None = timedelta(days=90)
    max_attempts: Annotated[int, Meta(ge=1, le=32767)] = 25
    max_deaths: Annotated[int, Meta(ge=1, le=32767)] = 5
    terminate_after_timeouts: _Million | None = None
    max_jobs_per_child: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    max_payload: Annotated[int, Meta(ge=LEAST_BOUND, le=67_108_864)] = 1_048_576
    backoff: Annotated[Backoff, _backoff] = Backoff()
    logging: LoggingSettings = LoggingSettings()
    sentry: bool | None = None
    sentry_level: Annotated[str, log_level] | None = "WARNING"
    redact: Names = SENSITIVE
    trace_link: (
        Annotated[str, Meta(pattern=r"(?s)^https?://.*\{trace_id\}", description="an address with {trace_id} in it")]
        | None
    ) = None
    sentry_monitors: bool = False
    tracing: bool = False
    outbox: OutboxSettings = OutboxSettings()
    consumers: Annotated[Mapping[str, ConsumerSettings], read_consumers] = field(
        default_factory=dict[str, ConsumerSettings]
    )

    @property
    def roles(self) -> Roles:
        """The database roles; ``ONE_USER`` if ``ROLES`` is not set."""
        return self.named_roles or ONE_USER

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
        """Whether the row of a succeeded job is kept, for ``retain_succeeded``."""
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
