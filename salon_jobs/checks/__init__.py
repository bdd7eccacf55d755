"""System checks. Each message names the fault and its remedy."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Final

from django.apps import apps
from django.core.checks import CheckMessage, Error, Info, Warning
from django.core.management import get_commands
from django.db import OperationalError, connections
from django.utils.module_loading import import_string
from psycopg import Error as PsycopgError
from psycopg import IsolationLevel
from psycopg.pq import Conninfo

from salon_jobs.access.doctor.catalogue import by_alias
from salon_jobs.access.doctor.examination import examine
from salon_jobs.brokers.broker import configured
from salon_jobs.brokers.registry import make_publisher, make_source, publisher_services
from salon_jobs.checks.bounds import check_bounds, check_server_timeouts
from salon_jobs.checks.isolation import check_isolation
from salon_jobs.conf import in_tests, is_eager, middleware
from salon_jobs.conf import settings as conf
from salon_jobs.conf.schema import REQUEST_STORES
from salon_jobs.conf.sections import PRODUCER_REMEDY, service_of
from salon_jobs.conf.store_key import StoreKey, key_of
from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.errors import ConfigurationError, NotReady, SchemaMissing
from salon_jobs.db.connections import POSTGRESQL_REMEDY, holds_job_tables, not_postgresql
from salon_jobs.db.pools import SMALL_POOL_REMEDY, size_of_pool, small_pool
from salon_jobs.inbox.processor import find_tasks
from salon_jobs.jobs import registry
from salon_jobs.jobs.payload import PayloadType
from salon_jobs.process.preflight import check_schema
from salon_jobs.schedules.entries import cron_entries
from salon_jobs.tenancy.request import TenantMiddleware
from salon_jobs.tenancy.resolvers import make_resolver

_SHOWN: Final = 5


def check_database(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Compare the live database with the declaration and with the tasks' timeouts, unless migrations are pending.

    Only if one of the aliases leads to it, perhaps past a pooler; by ``DATABASE``, whose user and routes are declared.
    """
    try:
        using = conf.database
        if not any(map(holds_job_tables, databases or ())):
            return []
        check_schema(using)
        messages = list(check_server_timeouts(using))
        if conf.on_drift != "ignore" and (drifts := examine(by_alias(using), using=using, with_orphans=False).drifts):
            shown = "".join(f"\n    {drift}" for drift in drifts[:_SHOWN])
            more = f"\n    and {len(drifts) - _SHOWN} more" if len(drifts) > _SHOWN else ""
            text = f"the database is not as declared:{shown}{more}"
            hint = "python manage.py salon_jobs doctor lists each difference with the statements that fix it"
            if conf.on_drift == "refuse":
                messages.append(Error(text, hint=hint, id="salon_jobs.E020"))
            else:
                messages.append(Warning(text, hint=hint, id="salon_jobs.W020"))
        return messages
    except (SchemaMissing, ConfigurationError):
        return []  # reported elsewhere
    except (NotReady, OperationalError, PsycopgError) as error:
        return [Warning(f"the live catalogue cannot be read: {error}", id="salon_jobs.W021")]


def check_settings() -> list[CheckMessage]:
    """Check SALON_JOBS, the database's vendor, the store model and commands that other apps override."""
    try:
        store_model, database = conf.store_model, conf.database
    except ConfigurationError as error:
        return [Error(fault, id="salon_jobs.E001", hint=_settings_hint(fault)) for fault in error.args]
    errors: list[CheckMessage] = []
    if (fault := not_postgresql(database)) is not None:
        errors.append(Error(fault, hint=POSTGRESQL_REMEDY, id="salon_jobs.E002"))
    else:
        errors += _check_options(database)
        errors += _check_pool(database)
    errors += _check_commands()
    if conf.eager:
        errors += _check_eager()
    if store_model is None:
        return errors
    try:
        key = key_of(apps.get_model(store_model)._meta.pk)
    except LookupError:
        text = f"SALON_JOBS['STORE_MODEL'] {store_model!r} does not exist"
        hint = "name an installed model as 'app_label.Model'"
        return [*errors, Error(text, hint=hint, id="salon_jobs.E004")]
    if key is None:
        hint = "give the store model a primary key of UUIDs, whole numbers or text, such as Django's default"
        text = f"no store can have a key of the type of {store_model}'s primary key"
        return [*errors, Error(text, hint=hint, id="salon_jobs.E005")]
    return [*errors, *_check_handlers(key)]


def _check_eager() -> Iterator[CheckMessage]:
    if is_eager():
        text = "EAGER: jobs run in the process that enqueues them, after the commit; no worker is needed"
        yield Info(text, hint="this is for development alone", id="salon_jobs.I001")
        return
    if conf.roles.one_user and in_tests():
        return  # the test runner has turned DEBUG off
    why = "with DEBUG alone" if conf.roles.one_user else "without ROLES alone: a web process's role may run none"
    hint = "remove SALON_JOBS['EAGER'], and start a worker: python manage.py runworker"
    yield Warning(f"SALON_JOBS['EAGER'] applies {why}: it is ignored", hint=hint, id="salon_jobs.W005")


def _check_handlers(key: StoreKey) -> Iterator[CheckMessage]:
    """Check that the handlers of store tasks annotate the store with the type of its key."""
    for task in registry.tasks():
        payload = task.payload
        if isinstance(payload, PayloadType) and payload.store_type not in (None, key.type):
            text = f"store task {task.name!r} annotates {payload.store_name} with another type than the stores' keys"
            hint = f"write {payload.store_name}: {key.type.__name__}, as {conf.store_model}'s primary key is"
            yield Error(text, hint=hint, id="salon_jobs.E007")


_WHERE: Final = "(its address: pip show --verbose salon-jobs)"


def _settings_hint(fault: str) -> str:
    """Return the hint for an error of the settings; it names the setting at the beginning of the error's text."""
    if " unknown key " in fault:
        return f"rename or remove the key; Settings in the documentation lists all {_WHERE}"
    key = re.match(r"SALON_JOBS(\['.+?'\])*", fault)
    return f"correct {key[0] if key else 'SALON_JOBS'}; Settings in the documentation lists its values {_WHERE}"


def _check_options(database: str) -> Iterator[CheckMessage]:
    """Check the isolation level, and warn where one of several hosts can be a standby. Reads no service file."""
    settings = connections[database].settings_dict
    options: Mapping[str, Any] = settings.get("OPTIONS", {})
    # In PostgreSQL, READ UNCOMMITTED is READ COMMITTED.
    if options.get("isolation_level") not in (None, IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED):
        hint = (
            "remove isolation_level from the alias's OPTIONS, and give code that needs it another alias: claims,"
            " enqueues with keys and limits must see what others commit while they wait, and would fail with"
            " serialization errors"
        )
        text = f"OPTIONS['isolation_level'] of the database {database!r} is not READ COMMITTED"
        yield Error(text, hint=hint, id="salon_jobs.E006")
    hosts = [str(options.get(name, "")) for name in ("host", "hostaddr")]
    # Its default, which an environment variable may set.
    [by_default] = [each.val for each in Conninfo.get_defaults() if each.keyword == b"target_session_attrs"]
    chosen = options.get("target_session_attrs") or (by_default or b"").decode()
    if any("," in host for host in (settings.get("HOST", ""), *hosts)) and chosen not in ("read-write", "primary"):
        hint = (
            "set OPTIONS['target_session_attrs'] to 'read-write', so that each connection leads to the primary, and"
            " OPTIONS['connect_timeout'] to a few seconds, which libpq spends on each host that does not answer"
        )
        text = f"the database {database!r} has several hosts, and connections may lead to a standby"
        yield Warning(text, hint=hint, id="salon_jobs.W004")


def _check_pool(database: str) -> Iterator[CheckMessage]:
    """Warn of a pool with which a worker started without options would refuse to run."""
    if (size := size_of_pool(connections[database].settings_dict.get("OPTIONS", {}).get("pool"))) is None:
        return
    # Web processes import no worker, unless they have a pool.
    from salon_jobs.worker.supervisor import threads_of  # noqa: PLC0415
    from salon_jobs.worker.worker import WorkerOptions  # noqa: PLC0415

    options = WorkerOptions(concurrency=conf.concurrency, async_concurrency=conf.async_concurrency)
    if size < (threads := threads_of(conf.processes or 1, options)):
        hint = SMALL_POOL_REMEDY.format(threads=threads)
        yield Warning(small_pool(database, size, threads), hint=hint, id="salon_jobs.W006")


_APP: Final = "salon_jobs"
# Commands with names that other apps use as well (Django Channels has a runworker), and our equivalent subcommands.
_SERVICES: Final = {
    "runworker": "worker",
    "runscheduler": "scheduler",
    "relay_outbox": "relay",
    "consume_queue": "consumer",
}


def _check_commands() -> Iterator[CheckMessage]:
    """Warn where another app's command takes precedence over ours."""
    winners = get_commands()
    if not conf.roles.one_user and winners["migrate"] != _APP:
        hint = (
            "put 'salon_jobs' before it in INSTALLED_APPS; or, if you need its migrate, silence this check: where"
            " bootstrap_roles has not been run, migrate then ends in a traceback that does not say so"
        )
        text = f"{winners['migrate']!r} overrides the migrate command of salon_jobs"
        yield Warning(text, hint=hint, id="salon_jobs.W001")
    for name, alias in _SERVICES.items():
        if winners[name] != _APP:
            hint = (
                f"run `python manage.py salon_jobs {alias}`, which is always ours, and silence this check; or, if"
                f" nobody needs its {name}, put 'salon_jobs' before it in INSTALLED_APPS"
            )
            winner = f"the command of {str(winners[name])!r}, which comes before 'salon_jobs'"
            yield Warning(f"`python manage.py {name}` is {winner}", hint=hint, id="salon_jobs.W003")


def check_consumers() -> list[CheckMessage]:
    """Check that the tasks exist, that the sources can be created, and that a job accepts their messages."""
    found: list[CheckMessage] = []
    for name, settings in conf.consumers.items():
        try:
            find_tasks(name, settings)
            source = make_source(settings.source, consumer=name)
        except ConfigurationError as error:
            found.append(Error(str(error), id="salon_jobs.E050"))
            continue
        source.close()
        if source.largest_bytes is not None and source.largest_bytes > conf.max_payload:
            text = (
                f"SALON_JOBS['MAX_PAYLOAD'] is {conf.max_payload:,} bytes, and the broker of consumer {name!r} delivers"
            )
            hint = (
                f"set it to {source.largest_bytes:,}, or have producers send less: the consumer rejects what is larger"
            )
            found.append(Warning(f"{text} up to {source.largest_bytes:,}", hint=hint, id="salon_jobs.W081"))
    return found


def check_publishers() -> list[CheckMessage]:
    """Check that ``OUTBOX["PUBLISHERS"]`` names publishers, and ``OUTBOX["THROUGHPUT"]`` services that have one.

    A relay creates a publisher only for its first message.
    """
    found: list[CheckMessage] = []
    known = publisher_services()
    for name in conf.outbox.throughput:
        if name != "*" and (service := service_of(name)) not in known:
            text = f"SALON_JOBS['OUTBOX']['THROUGHPUT'][{name!r}]: the service {service!r} has no publisher"
            hint = f"name one of {', '.join(sorted(known))}, or one of their destinations"
            found.append(Error(text, hint=hint, id="salon_jobs.E053"))
    for service in conf.outbox.publishers:
        try:
            make_publisher(service)
        except ConfigurationError as error:
            found.append(Error(str(error), id="salon_jobs.E051"))
    return found


def check_producer() -> list[CheckMessage]:
    """Require ``OUTBOX["PRODUCER"]`` if a broker is configured from which no consumer reads."""
    if conf.outbox.producer is not None:
        return []
    read = {parse_destination(consumer.source).service for consumer in conf.consumers.values()}
    sending = [broker.section for broker in configured() if not broker.services & read]
    if not sending:
        return []
    text = f"SALON_JOBS['OUTBOX']['PRODUCER'] is not set, and SALON_JOBS[{sending[0]!r}] is"
    hint = f"set it to {PRODUCER_REMEDY}"
    return [Error(text, hint=hint, id="salon_jobs.E052")]


def check_sentry() -> list[CheckMessage]:
    """Check that Sentry's SDK is installed if ``SENTRY`` is set, and was imported in time if it is not."""
    if conf.sentry and find_spec("sentry_sdk") is None:
        hint = "pip install 'salon-jobs[sentry]', or remove SENTRY"
        return [Error("SALON_JOBS['SENTRY'] needs sentry-sdk", hint=hint, id="salon_jobs.E060")]
    loaded = sys.modules.get("sentry_sdk") is not None
    if conf.sentry is None and loaded and "salon_jobs.integrations.sentry" not in sys.modules:
        text = "sentry_sdk was imported after Django started: jobs and messages are not reported to Sentry"
        hint = (
            "set SALON_JOBS['SENTRY'] to True to report them, or to False not to; or import sentry_sdk in the settings"
        )
        return [Warning(text, hint=hint, id="salon_jobs.W060")]
    return []


def _some(names: Sequence[str]) -> str:
    """List the first few of these names, and how many more there are."""
    more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return ", ".join([*names[:_SHOWN], *more])


def check_crontab() -> list[CheckMessage]:
    """Warn of cron entries that start nothing, since their tasks have a backend that is not ours."""
    if not cron_entries.left_out:
        return []
    listed = [f"{name!r} (of {backend})" for name, backend in cron_entries.left_out.items()]
    text = f"cron entries that start nothing, since another backend has their tasks: {_some(listed)}"
    hint = (
        "in production, have TASKS name salon_jobs.backend.SalonJobsBackend; for tests and development, silence this"
        " check"
    )
    return [Warning(text, hint=hint, id="salon_jobs.W072")]


def check_task_signals() -> list[CheckMessage]:
    """Warn of receivers of ``django_tasks.signals`` where only the signals of ``django.tasks`` are sent."""
    framework = sys.modules.get("salon_jobs.backend.framework")  # loaded where TASKS names our backend
    unheard: list[str] = [] if framework is None else framework.unheard_receivers()
    if not unheard:
        return []
    text = (
        "receivers of django_tasks.signals that are never called, since this version of Django has tasks of its own:"
        f" {_some(unheard)}"
    )
    hint = (
        "connect them to the signals of django.tasks.signals; import exceptions and classes from django.tasks too,"
        " which this check cannot see"
    )
    return [Warning(text, hint=hint, id="salon_jobs.W073")]


OURS: Final = f"{TenantMiddleware.__module__}.{TenantMiddleware.__name__}"
# By name: the module can only be imported when django.contrib.auth is installed.
_SIGNS_IN: Final = "django.contrib.auth.middleware.AuthenticationMiddleware"


def check_requests() -> list[CheckMessage]:
    """Check that TenantMiddleware is present if required, in the right place, and can be created."""
    found = [names_of(path) for path in middleware()]
    place = next((number for number, names in enumerate(found) if OURS in names), None)
    if place is None:
        if conf.membership_model is None:
            return []
        hint = f"put '{OURS}' after AuthenticationMiddleware in MIDDLEWARE"
        text = (
            "SALON_JOBS['MEMBERSHIP_MODEL'] is set, but TenantMiddleware is not in MIDDLEWARE: requests have no store"
        )
        return [Warning(text, hint=hint, id="salon_jobs.W030")]
    errors: list[CheckMessage] = []
    try:
        make_resolver()
    except ConfigurationError as error:
        hint = f"{_settings_hint(str(error))}; or remove TenantMiddleware, which needs it"
        errors.append(Error(str(error), hint=hint, id="salon_jobs.E030"))
    if conf.request_resolver in REQUEST_STORES and not any(_SIGNS_IN in names for names in found[:place]):
        hint = f"put '{OURS}' after AuthenticationMiddleware: the store is that of the signed-in user"
        text = "TenantMiddleware does not come after AuthenticationMiddleware"
        errors.append(Error(text, hint=hint, id="salon_jobs.E031"))
    return errors


def names_of(path: str) -> set[str]:
    """Return the dotted names of a middleware's class and its base classes."""
    try:
        found: object = import_string(path)
    except ImportError:  # reported by Django
        return set()
    return {f"{kind.__module__}.{kind.__name__}" for kind in found.__mro__} if isinstance(found, type) else set()


_CHECKS: Final = (
    check_consumers,
    check_publishers,
    check_producer,
    check_bounds,
    check_sentry,
    check_requests,
    check_isolation,
    check_crontab,
    check_task_signals,
)


def check_all(**_: Any) -> list[CheckMessage]:
    """Run every check that needs neither the database nor the URLs; only the first if the settings cannot be read."""
    messages = check_settings()
    if any(message.id == "salon_jobs.E001" for message in messages):
        return messages
    return messages + [message for check in _CHECKS for message in check()]
