"""The section ``NATS`` of the settings, and its check."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Any
from urllib.parse import urlsplit

from django.core.checks import CheckMessage, Warning
from msgspec import Meta

from salon_jobs.conf import section
from salon_jobs.conf import settings as conf
from salon_jobs.conf.reader import SECRET, Duration, DurationOrZero, Section, Text, secret_pair, secret_text
from salon_jobs.core.errors import ConfigurationError


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


_Files = Annotated[tuple[Text, Text], Meta(description="a pair (certificate, key) of strings")]
_User = Annotated[tuple[str, str], Meta(description="a pair (user, password) of strings"), secret_pair, SECRET]


class NatsSettings(Section, frozen=True):
    """Settings for NATS JetStream.

    When a connection is lost or cannot be made, there are ``max_reconnects`` more attempts, ``reconnect_wait`` apart,
    plus up to ``reconnect_jitter`` (by default 0.1 s, with TLS 1 s). After that, the next publish starts over.
    """

    server: Annotated[tuple[str, ...], _servers, SECRET] = ("nats://127.0.0.1:4222",)
    client_name: Text = "salon_jobs"
    max_reconnects: Annotated[int, Meta(ge=0, le=1_000_000)] = 5
    reconnect_wait: Duration = timedelta(seconds=2)
    reconnect_jitter: DurationOrZero | None = None
    timeout: Duration = timedelta(seconds=5)
    domain: Text | None = None
    tls_ca_file: Text | None = None
    tls_certificate_files: _Files | None = None
    user: _User | None = None
    credentials_file: Text | None = None
    token: Annotated[Text, secret_text, SECRET] | None = None
    max_payload: Annotated[int, Meta(ge=1, le=67_108_864)] = 1_048_576

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


nats_settings = section("NATS", NatsSettings)


def check() -> Iterator[CheckMessage]:
    """Warn where a relay that stops does not wait for the server's answers."""
    answer_s, stop_s = nats_settings.timeout.total_seconds(), conf.shutdown_interrupt_after.total_seconds()
    if answer_s > stop_s:
        text = f"SALON_JOBS['NATS']['TIMEOUT'] is {answer_s:g} s, and a relay that stops waits {stop_s:g} s for answers"
        hint = "lower it, or raise SHUTDOWN_GRACE: messages whose answer is still out are sent again by the next relay"
        yield Warning(text, hint=hint, id="salon_jobs.W083")
