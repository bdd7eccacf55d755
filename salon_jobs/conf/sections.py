"""Settings sections for the outbox, consumers and logging."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import timedelta
from importlib import import_module
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from msgspec import Meta, convert, field

from salon_jobs.conf.reader import Duration, Names, Section, Text, Texts, log_level, read_section, read_value
from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.errors import ConfigurationError, MessageInvalid
from salon_jobs.core.records import StoreId

# Declarations of the brokers, a layer above: their sections of the settings are read where they are given.
BROKERS: Final = "salon_jobs.brokers.broker"
_SERVICE: Final = re.compile(r"[a-z][a-z0-9-]*")
_Rate = Annotated[int, Meta(ge=1, le=10_000_000)] | None
_EVERY_OTHER: Final = "*"
_DEFAULT_RATE: Final = 3000


def _rates(value: Any) -> dict[str, int | None]:
    """Read rates by service or destination, with "*" for all others; a single rate is for all."""
    if not isinstance(value, dict):
        return {_EVERY_OTHER: convert(value, _Rate)}
    given: dict[Any, Any] = {**value}
    rates: dict[str, int | None] = {_EVERY_OTHER: _DEFAULT_RATE}
    for name, rate in given.items():
        at = f"SALON_JOBS['OUTBOX']['THROUGHPUT'][{name!r}]"
        try:
            if not isinstance(name, str) or not (name == _EVERY_OTHER or _SERVICE.fullmatch(name)):
                parse_destination(name)
        except (MessageInvalid, TypeError):
            raise ConfigurationError(
                f"{at}: the key must be a service in lower case such as 'memory', an ARN or RN, or '*' for all others"
            ) from None
        rates[name] = read_value(_Rate, rate, path=at)
    return rates


_Rates = Annotated[
    Mapping[str, int | None],
    Meta(
        description="a whole number from 1 to 10000000, or None, or a dict of services such as 'memory', or ARNs and"
        " RNs, to such numbers"
    ),
    _rates,
]


class OutboxSettings(Section, frozen=True):
    """Settings for emit and the relay.

    ``throughput`` maps a service or aggregate type, or "*" for all others, to messages per second for each aggregate
    type; None is no limit, but no destination gets more than its broker accepts. ``publishers`` maps a service (the
    third part of an ``aggregate_type``) to the dotted path of its publisher class, ``sources`` to that of its source
    for ``consume_queue``.
    """

    producer: Text | None = None
    poll_interval: Duration = timedelta(seconds=5)
    fetch_limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    retry_count: Annotated[int, Meta(ge=1, le=1000)] = 10
    retry_backoff: Duration = timedelta(seconds=20)
    throughput: _Rates = field(default_factory=lambda: {_EVERY_OTHER: _DEFAULT_RATE})
    publishers: Texts = field(default_factory=dict[str, str])
    sources: Texts = field(default_factory=dict[str, str])
    retain_published: Duration | None = timedelta(days=7)

    def rate_of(self, aggregate_type: str) -> int | None:
        """Return the messages per second for a destination: its own rate, its service's, or the general one."""
        service, rates = service_of(aggregate_type), self.throughput
        rate = rates.get(aggregate_type, rates.get(service, rates[_EVERY_OTHER]))
        most: int | None = import_module(BROKERS).most_per_s(service)
        return rate if most is None else min(rate or most, most)

    def check_rates(self, services: Collection[str]) -> None:
        """Refuse rates above a broker's limit. Raises ConfigurationError naming the key.

        ``services`` are in use, so the general rate applies to those without their own.
        """
        most_per_s = import_module(BROKERS).most_per_s
        named = {name: service_of(name) for name in self.throughput if name != _EVERY_OTHER}
        for name, service in named.items():
            most, rate = most_per_s(service), self.throughput[name]
            if most is not None and (rate is None or rate > most):
                raise ConfigurationError(
                    f"SALON_JOBS['OUTBOX']['THROUGHPUT'][{name!r}] must be at most {most}, which is all that a "
                    f"destination of {service!r} accepts per second, not {rate}"
                )
        general = self.throughput[_EVERY_OTHER]
        for service in sorted({*services, *named.values()} - self.throughput.keys()):
            most = most_per_s(service)
            if most is not None and (general is None or general > most):
                raise ConfigurationError(
                    f"SALON_JOBS['OUTBOX']['THROUGHPUT'] is {general}, but a destination of {service!r} accepts at "
                    f"most {most} per second: write {{'*': {general}, {service!r}: {most}}}, or less for {service!r}"
                )

    def require_producer(self) -> str:
        """Return the producer name that messages carry. Raises ConfigurationError."""
        if self.producer is None:
            raise ConfigurationError(f"SALON_JOBS['OUTBOX']['PRODUCER'] is not set: it is {PRODUCER_REMEDY}")
        return self.producer


PRODUCER_REMEDY: Final = (
    "the name of this application, which every message carries: SALON_JOBS = {'OUTBOX': {'PRODUCER': 'shop'}}"
)


def service_of(name: str) -> str:
    """Return the service of a bare service name, an ARN or an RN."""
    return name.split(":")[2] if name.count(":") > 1 else name


# The length of the inbox column.
LONGEST_NAME: Final = 100
# The key in TASKS for the single task of bodies without an envelope, which name no event.
ANY_EVENT: Final = "*"


_SOURCE: Final = "an ARN or RN, such as 'rn::SERVICE:::orders'"


def _source(value: Any) -> str:
    try:
        return parse_destination(value).name
    except (MessageInvalid, TypeError):
        raise ValueError(_SOURCE) from None


def _store(value: Any) -> StoreId:
    if isinstance(value, bool) or not isinstance(value, UUID | int | str) or value == "":
        raise ValueError("'envelope', or the key of a store")
    return value


class ConsumerSettings(Section, frozen=True):
    """Settings of one source that consume_queue reads, mapping its events to tasks.

    ``source`` is an ARN or RN. With ``envelope`` "none", bodies are bare arguments in JSON, and the message id is the
    broker's. ``store`` is the store of the resulting store jobs: "envelope", or a fixed one. Only messages of
    ``producers`` are accepted; None accepts all. ``unknown_fields`` of a payload are ignored, or have it rejected.
    """

    source: Annotated[str, _source] = ""
    tasks: Texts = field(default_factory=dict[str, str])
    envelope: Literal["salon_jobs", "none"] = "salon_jobs"
    replays: Literal["accept", "refuse"] = "accept"
    store: Annotated[StoreId, _store] = "envelope"
    producers: Names | None = None
    unknown_fields: Literal["ignore", "reject"] = "ignore"

    @property
    def has_envelope(self) -> bool:
        """Whether messages carry more than their payload: event, producer, store, id."""
        return self.envelope != "none"


def read_consumers(value: Any) -> dict[str, ConsumerSettings]:
    """Read all consumers by name. Raises ConfigurationError naming the field."""
    path = "SALON_JOBS['CONSUMERS']"
    consumers: dict[Any, Any] = {**value} if isinstance(value, dict) else {"": None}
    if not all(isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable() for name in consumers):
        raise ConfigurationError(f"{path} must be a dict of names, of 1 to {LONGEST_NAME} characters, to dicts")
    return {name: _read(each, path=f"{path}[{name!r}]") for name, each in consumers.items()}


def _read(value: object, *, path: str) -> ConsumerSettings:
    read = read_section(ConsumerSettings, value, path=path)
    if not read.source:
        raise ConfigurationError(f"{path}['SOURCE'] must be set: {_SOURCE}")
    if not read.tasks:
        raise ConfigurationError(f"{path}['TASKS'] must map at least one event to a task, such as {{'e': 'do-it'}}")
    if read.has_envelope:
        if ANY_EVENT in read.tasks:
            raise ConfigurationError(
                f"{path}['TASKS'] {ANY_EVENT!r} is for bodies with ENVELOPE 'none': name each event and its task"
            )
        return read
    because = "with ENVELOPE 'none': bodies without an envelope name no"
    bare: list[str] = import_module(BROKERS).bare_services()
    if parse_destination(read.source).service not in bare:
        raise ConfigurationError(
            f"{path}['ENVELOPE'] 'none' is for queues of {' and '.join(bare)}, such as "
            f"'rn::{bare[0]}:::parse-tasks', not {read.source!r}: other brokers carry the event in a header"
        )
    if set(read.tasks) != {ANY_EVENT}:
        raise ConfigurationError(
            f"{path}['TASKS'] must be {{{ANY_EVENT!r}: 'do-it'}}, one task for all, {because} event"
        )
    if read.producers is not None:
        raise ConfigurationError(f"{path}['PRODUCERS'] cannot be set {because} producer")
    if read.replays == "refuse":
        raise ConfigurationError(f"{path}['REPLAYS'] cannot be 'refuse' {because} message that they repeat")
    return read


FORMATS: Final = ("json", "text")


class LoggingSettings(Section, frozen=True):
    """Log level and format. A command's ``--log-level`` and ``--log-format`` override them.

    Without a format it is text on a terminal, json otherwise.
    """

    level: Annotated[str, log_level] = "INFO"
    format: Literal["json", "text"] | None = None
