"""The section ``NATS`` of the settings, and its check."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from django.core.checks import CheckMessage, Warning

from salon_jobs.conf import section
from salon_jobs.conf import settings as conf
from salon_jobs.conf.reader import count, duration, optional, pair, secret_text, setting, text
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
    user: tuple[str, str] | None = setting(None, optional(pair("user", "password", each=secret_text)), secret=True)
    credentials_file: str | None = setting(None, optional(text))
    token: str | None = setting(None, optional(secret_text), secret=True)
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


settings = section("NATS", NatsSettings)


def check() -> Iterator[CheckMessage]:
    """Warn where a relay that stops does not wait for the server's answers."""
    answer_s, stop_s = settings.timeout.total_seconds(), conf.shutdown_interrupt_after.total_seconds()
    if answer_s > stop_s:
        text = f"SALON_JOBS['NATS']['TIMEOUT'] is {answer_s:g} s, and a relay that stops waits {stop_s:g} s for answers"
        hint = "lower it, or raise SHUTDOWN_GRACE: messages whose answer is still out are sent again by the next relay"
        yield Warning(text, hint=hint, id="salon_jobs.W083")
