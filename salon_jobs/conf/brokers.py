"""Settings for Azure Queue Storage, NATS JetStream and AWS."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from salon_jobs.conf.reader import count, duration, names, optional, pair, setting, text
from salon_jobs.core.errors import ConfigurationError

QUEUE_NAME: Final = re.compile(r"(?=.{3,63}$)[a-z0-9]+(?:-[a-z0-9]+)*")
_LEAST, _MOST = timedelta(seconds=1), timedelta(days=7)


def _connection_string(value: Any) -> Any:
    """Read an account's connection string; errors do not show it."""
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
    if not _LEAST <= visibility <= _MOST:
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
    plus up to ``reconnect_jitter``, which is 0.1 s and with TLS 1 s by default; the next publish then starts over.
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
                f"SALON_JOBS['NATS']: {' and '.join(ways)} are ways to log in that exclude each other; set one"
            )

    @property
    def tls(self) -> bool:
        """Whether connections without TLS are refused."""
        return any((self.tls_ca_file, self.tls_certificate_files)) or any(u.startswith("tls://") for u in self.server)

    @property
    def jitter(self) -> timedelta:
        """The random part of the wait before another attempt: a TLS handshake costs the servers more."""
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
        raise ValueError("an address such as 'https://sns.ap-northeast-1.amazonaws.com', or None for that of AWS")
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

    Without a key boto3 finds its credentials itself (environment, profile, the machine's role). The lists of topics
    hold names; an ARN is reduced to its name. ``refetch_interval`` None: topics are read only at the start.
    """

    region: str = setting("ap-northeast-1", _region)
    endpoint: str | None = setting(None, _endpoint)
    access_key: tuple[str, str] | None = setting(None, optional(pair("access key", "secret key")), secret=True)
    allow_list: tuple[str, ...] = setting((), _topics)
    deny_list: tuple[str, ...] = setting((), _topics)
    skip_events: tuple[str, ...] = setting((), names)
    ignore_list: tuple[str, ...] = setting((), _topics)
    refetch_interval: timedelta | None = setting(timedelta(hours=24), optional(duration))
