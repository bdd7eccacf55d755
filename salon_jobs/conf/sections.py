"""Settings sections for the outbox, consumers, logging and each broker."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, cast
from urllib.parse import urlsplit
from uuid import UUID

from salon_jobs.conf.reader import (
    count,
    duration,
    log_level,
    names,
    one_of,
    optional,
    pair,
    read_section,
    setting,
    text,
    texts,
)
from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.errors import ConfigurationError, MessageInvalid

# The number of publishes per second that AWS accepts for a topic.
_MOST_FOR_SNS: Final = 3000
_SERVICE: Final = re.compile(r"[a-z][a-z0-9-]*")
_rate: Final = optional(count(1, 10_000_000))
_EVERY_OTHER: Final = "*"
_DEFAULT_RATE: Final = 3000


def _rates(value: Any) -> dict[str, int | None]:
    """Read rates by service or destination, with "*" for all others; a single rate is for all."""
    if isinstance(value, dict):
        rates = cast("dict[str, Any]", value)
        return {_EVERY_OTHER: _DEFAULT_RATE} | {name: _rate_of(name, rate) for name, rate in rates.items()}
    try:
        return {_EVERY_OTHER: cast("int | None", _rate(value))}
    except ValueError as error:
        raise ValueError(f"{error}, or a dict of services such as 'nats', or ARNs and RNs, to such numbers") from None


def _rate_of(name: Any, rate: Any) -> int | None:
    """Read one rate. Raises ConfigurationError naming its key."""
    at = f"SALON_JOBS['OUTBOX']['THROUGHPUT'][{name!r}]"
    try:
        if not isinstance(name, str) or not (name == _EVERY_OTHER or _SERVICE.fullmatch(name)):
            parse_destination(name)
    except (MessageInvalid, TypeError):
        raise ConfigurationError(
            f"{at}: the key must be a service in lower case such as 'nats', an ARN or RN, or '*' for all others"
        ) from None
    try:
        return cast("int | None", _rate(rate))
    except ValueError as error:
        raise ConfigurationError(f"{at} must be {error}, not {rate!r}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxSettings:
    """Settings for emit and the relay.

    ``throughput`` maps a service or aggregate type, or "*" for all others, to messages per second for each aggregate
    type; None is no limit, but SNS never gets more than 3,000. ``publishers`` maps a service (the third part of an
    ``aggregate_type``) to the dotted path of its publisher class, ``sources`` to that of its source for
    ``consume_queue``.
    """

    producer: str | None = setting(None, optional(text))
    poll_interval: timedelta = setting(timedelta(seconds=5), duration)
    fetch_limit: int = setting(1000, count(1, 10_000))
    max_payload: int = setting(1_048_576, count(1, 67_108_864))
    retry_count: int = setting(10, count(1, 1000))
    retry_backoff: timedelta = setting(timedelta(seconds=20), duration)
    throughput: Mapping[str, int | None] = setting(lambda: {_EVERY_OTHER: _DEFAULT_RATE}, _rates)
    publishers: Mapping[str, str] = setting(dict[str, str], texts)
    sources: Mapping[str, str] = setting(dict[str, str], texts)
    retain_published: timedelta | None = setting(timedelta(days=7), optional(duration))

    def rate_of(self, aggregate_type: str) -> int | None:
        """Return the messages per second for a destination: its own rate, its service's, or the general one."""
        service, rates = service_of(aggregate_type), self.throughput
        rate = rates.get(aggregate_type, rates.get(service, rates[_EVERY_OTHER]))
        return min(rate or _MOST_FOR_SNS, _MOST_FOR_SNS) if service == "sns" else rate

    def check_sns_rates(self, *, in_use: bool) -> None:
        """Refuse rates above the SNS maximum. Raises ConfigurationError naming the key.

        ``in_use``: the settings have a section for SNS, so the general rate applies to it too.
        """
        for name, rate in self.throughput.items():
            if service_of(name) == "sns":
                in_use = True
                if not _fits_sns(rate):
                    raise ConfigurationError(
                        f"SALON_JOBS['OUTBOX']['THROUGHPUT'][{name!r}] must be at most {_MOST_FOR_SNS}, which is all "
                        f"that SNS accepts per second, not {rate}"
                    )
        general = self.throughput[_EVERY_OTHER]
        if in_use and "sns" not in self.throughput and not _fits_sns(general):
            raise ConfigurationError(
                f"SALON_JOBS['OUTBOX']['THROUGHPUT'] is {general}, but SNS accepts at most {_MOST_FOR_SNS} per second: "
                f"write {{'*': {general}, 'sns': {_MOST_FOR_SNS}}}, or less for SNS"
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


def _fits_sns(rate: int | None) -> bool:
    return rate is not None and rate <= _MOST_FOR_SNS


# The length of the inbox column.
LONGEST_NAME: Final = 100
# The key in TASKS for the single task of bodies without an envelope, which name no event.
ANY_EVENT: Final = "*"


def _source(value: Any) -> str:
    try:
        return parse_destination(value).name
    except (MessageInvalid, TypeError):
        raise ValueError("an ARN or RN, such as 'rn::nats:::orders' or 'rn::azurequeue:::orders'") from None


def _store(value: Any) -> str | UUID:
    try:
        return value if value == "envelope" or isinstance(value, UUID) else UUID(value)
    except (ValueError, TypeError, AttributeError):
        raise ValueError("'envelope', or a store's UUID") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Settings of one source that consume_queue reads, mapping its events to tasks.

    ``source`` is an ARN or RN. With ``envelope`` "none", bodies are bare arguments in JSON, and the message id is the
    broker's. ``store`` is the store of the resulting store jobs: "envelope", or a fixed one. ``producers`` are those
    whose messages are accepted; None accepts all.
    """

    source: str = setting("", _source)
    tasks: Mapping[str, str] = setting(dict[str, str], texts)
    envelope: str = setting("salon_jobs", one_of("salon_jobs", "none"))
    replays: str = setting("accept", one_of("accept", "refuse"))
    store: str | UUID = setting("envelope", _store)
    producers: tuple[str, ...] | None = setting(None, optional(names))

    @property
    def has_envelope(self) -> bool:
        """Whether messages carry more than their payload: event, producer, store, id."""
        return self.envelope != "none"


def read_consumers(value: Any) -> dict[str, ConsumerSettings]:
    """Read all consumers by name. Raises ConfigurationError naming the field."""
    path = "SALON_JOBS['CONSUMERS']"
    consumers = cast("dict[str, Any]", value) if isinstance(value, dict) else {"": None}
    if not all(map(_is_name, consumers)):
        raise ConfigurationError(f"{path} must be a dict of names, of 1 to {LONGEST_NAME} characters, to dicts")
    return {name: _read(each, path=f"{path}[{name!r}]") for name, each in consumers.items()}


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= LONGEST_NAME and value.isprintable()


def _read(value: object, *, path: str) -> ConsumerSettings:
    read = read_section(ConsumerSettings, value, path=path)
    if not read.source:
        raise ConfigurationError(f"{path}['SOURCE'] must be set: an ARN or RN, such as 'rn::nats:::orders'")
    if not read.tasks:
        raise ConfigurationError(f"{path}['TASKS'] must map at least one event to a task, such as {{'e': 'do-it'}}")
    if not read.has_envelope:
        _check_without_envelope(read, path=path)
    elif ANY_EVENT in read.tasks:
        raise ConfigurationError(
            f"{path}['TASKS'] {ANY_EVENT!r} is for bodies with ENVELOPE 'none': name each event and its task"
        )
    return read


def _check_without_envelope(read: ConsumerSettings, *, path: str) -> None:
    """Refuse settings that need an envelope."""
    because = "with ENVELOPE 'none': bodies without an envelope name no"
    if parse_destination(read.source).service != "azurequeue":
        raise ConfigurationError(
            f"{path}['ENVELOPE'] 'none' is for queues of Azure, such as 'rn::azurequeue:::parse-tasks', "
            f"not {read.source!r}: other brokers carry the event in a header"
        )
    if set(read.tasks) != {ANY_EVENT}:
        raise ConfigurationError(
            f"{path}['TASKS'] must be {{{ANY_EVENT!r}: 'do-it'}}, one task for all, {because} event"
        )
    if read.producers is not None:
        raise ConfigurationError(f"{path}['PRODUCERS'] cannot be set {because} producer")
    if read.replays == "refuse":
        raise ConfigurationError(f"{path}['REPLAYS'] cannot be 'refuse' {because} message that they repeat")


FORMATS: Final = ("json", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingSettings:
    """Log level and format. A command's ``--log-level`` and ``--log-format`` override them.

    Without a format it is text on a terminal, json otherwise.
    """

    level: str = setting("INFO", log_level)
    format: str | None = setting(None, one_of(*FORMATS))


QUEUE_NAME: Final = re.compile(r"(?=.{3,63}$)[a-z0-9]+(?:-[a-z0-9]+)*")
_SHORTEST_VISIBILITY, _LONGEST_VISIBILITY = timedelta(seconds=1), timedelta(days=7)


def _connection_string(value: Any) -> Any:
    """Read an account's connection string. Errors do not show it."""
    parts = [part.partition("=") for part in value.rstrip(";").split(";")] if isinstance(value, str) else []
    fields = {name.lower(): content for name, _, content in parts if content}
    if not parts or len(fields) != len(parts):
        raise ValueError("a connection string of name=value parts joined by semicolons")
    if fields == {"usedevelopmentstorage": "true"}:
        return value
    if not fields.keys() & {"accountname", "queueendpoint"}:
        raise ValueError("a connection string that names the account (AccountName or QueueEndpoint)")
    if not fields.keys() & {"accountkey", "sharedaccesssignature"}:
        raise ValueError("a connection string with a key (AccountKey or SharedAccessSignature)")
    try:
        base64.b64decode(fields.get("accountkey", ""), validate=True)
    except binascii.Error:
        raise ValueError("a connection string whose AccountKey is complete: it is not base64") from None
    return value


def _visibility(value: Any) -> timedelta:
    visibility = duration(value)
    if not _SHORTEST_VISIBILITY <= visibility <= _LONGEST_VISIBILITY:
        raise ValueError("a timedelta or a number of seconds, from one second to seven days")
    return visibility


def _queues(value: Any) -> tuple[str, ...]:
    try:
        queues = names(value)
    except ValueError:
        queues = ("",)
    if not all(map(QUEUE_NAME.fullmatch, queues)):
        raise ValueError("a list of names of queues, such as ['parse-tasks']")
    return queues


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureSettings:
    """Settings for Azure Queue Storage.

    ``visibility_timeout``: how long a received message is hidden from other consumers. ``plain_queues``: queues whose
    message bodies are the bare payload, without an envelope.
    """

    connection_string: str | None = setting(None, optional(_connection_string), secret=True)
    visibility_timeout: timedelta = setting(timedelta(seconds=30), _visibility)
    plain_queues: tuple[str, ...] = setting((), _queues)


def _servers(value: Any) -> tuple[str, ...]:
    items: Any = value.split(",") if isinstance(value, str) else value
    urls: tuple[Any, ...] = tuple(items) if type(items) in (list, tuple) else ()
    if not urls or not all(isinstance(url, str) and _is_server(url.strip()) for url in urls):
        raise ValueError(
            "a URL such as nats://host:4222 or tls://host:4222, several in a list or separated by commas, without user "
            "and password, which are settings of their own"
        )
    return tuple(url.strip() for url in urls)


def _is_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("nats", "tls") and bool(parts.hostname) and parts.port != 0 and parts.username is None
    except ValueError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsSettings:
    """Settings for NATS JetStream.

    When a connection is lost or cannot be made, there are ``max_reconnects`` more attempts, ``reconnect_wait`` apart,
    plus up to ``reconnect_jitter`` (by default 0.1 s, with TLS 1 s). After that, the next publish starts over.
    """

    server: tuple[str, ...] = setting(("nats://127.0.0.1:4222",), _servers, secret=True)
    client_name: str = setting("salon_jobs", text)
    max_reconnects: int = setting(5, count(0, 1_000_000))
    reconnect_wait: timedelta = setting(timedelta(seconds=2), duration)
    reconnect_jitter: timedelta | None = setting(None, optional(partial(duration, zero=True)))
    timeout: timedelta = setting(timedelta(seconds=5), duration)
    domain: str | None = setting(None, optional(text))
    tls_ca_file: str | None = setting(None, optional(text))
    tls_certificate_files: tuple[str, str] | None = setting(None, optional(pair("certificate", "key")))
    user: tuple[str, str] | None = setting(None, optional(pair("user", "password")), secret=True)
    credentials_file: str | None = setting(None, optional(text))
    token: str | None = setting(None, optional(text), secret=True)
    max_payload: int = setting(1_048_576, count(1, 67_108_864))

    def __post_init__(self) -> None:
        """Refuse contradictory settings."""
        ways = [name.upper() for name in ("user", "credentials_file", "token") if getattr(self, name) is not None]
        if len(ways) > 1:
            raise ConfigurationError(
                f"SALON_JOBS['NATS']: set only one of {' and '.join(ways)}, which are different ways to log in"
            )

    @property
    def tls(self) -> bool:
        """Whether connections without TLS are refused."""
        return any((self.tls_ca_file, self.tls_certificate_files)) or any(u.startswith("tls://") for u in self.server)

    @property
    def jitter(self) -> timedelta:
        """The random part of the wait between attempts; longer with TLS, whose handshake costs the servers more."""
        if self.reconnect_jitter is not None:
            return self.reconnect_jitter
        return timedelta(seconds=1) if self.tls else timedelta(milliseconds=100)


_REGION: Final = re.compile(r"[a-z]{2}[a-z0-9-]+")
_ENDPOINT: Final = re.compile(r"https?://[^\s/]+\S*")
_TOPIC: Final = re.compile(r"(?:arn:aws[a-z-]*:sns:[a-z0-9-]*:[0-9]*:)?([A-Za-z0-9_-]{1,256}(?:\.fifo)?)")


def _region(value: Any) -> str:
    if not isinstance(value, str) or not _REGION.fullmatch(value):
        raise ValueError("a region such as 'ap-northeast-1'")
    return value


def _endpoint(value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or not _ENDPOINT.fullmatch(value)):
        raise ValueError("an address such as 'https://sns.ap-northeast-1.amazonaws.com', or None for the one of AWS")
    return value


def _topics(value: Any) -> tuple[str, ...]:
    try:
        matches = [_TOPIC.fullmatch(name) for name in names(value)]
    except ValueError:
        matches = [None]
    topics = [match[1] for match in matches if match is not None]
    if len(topics) != len(matches):
        raise ValueError("a list of topics, each a name or an ARN of SNS")
    return tuple(topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnsSettings:
    """Settings for AWS SNS, and for SQS on the way back.

    Without a key, boto3 finds credentials itself (environment, profile, the machine's role). The lists hold names of
    topics; an ARN is reduced to its name. With ``refetch_interval`` None, topics are read only at the start.
    """

    region: str = setting("ap-northeast-1", _region)
    endpoint: str | None = setting(None, _endpoint)
    access_key: tuple[str, str] | None = setting(None, optional(pair("access key", "secret key")), secret=True)
    allow_list: tuple[str, ...] = setting((), _topics)
    deny_list: tuple[str, ...] = setting((), _topics)
    skip_events: tuple[str, ...] = setting((), names)
    ignore_list: tuple[str, ...] = setting((), _topics)
    refetch_interval: timedelta | None = setting(timedelta(hours=24), optional(duration))
