"""Declares how to reach NATS JetStream."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from salon_jobs.core.errors import ConfigurationError
from salon_jobs.sections.reading import count, duration, setting, text


def _servers(value: Any) -> tuple[str, ...]:
    given: Any = value.split(",") if isinstance(value, str) else value
    urls: tuple[Any, ...] = tuple(given) if type(given) in (list, tuple) else ()
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
    """Holds how to reach NATS JetStream. ``window`` is how many messages of a publish may be on their way at once.

    After a connection is lost, or can not be made, it is tried ``max_reconnects`` times more, ``reconnect_wait`` apart,
    plus up to ``reconnect_jitter`` (``reconnect_jitter_tls`` with TLS); then the next publish begins anew.
    """

    server: tuple[str, ...] = setting(("nats://127.0.0.1:4222",), _servers)
    client_name: str = setting("salon_jobs", text())
    max_reconnects: int = setting(5, count(0, 1_000_000))
    reconnect_wait: timedelta = setting(timedelta(seconds=2), duration())
    reconnect_jitter: timedelta = setting(timedelta(milliseconds=100), duration(zero=True))
    reconnect_jitter_tls: timedelta = setting(timedelta(seconds=1), duration(zero=True))
    timeout: timedelta = setting(timedelta(seconds=5), duration())
    domain: str | None = setting(None, text(optional=True))
    tls_ca_file: str | None = setting(None, text(optional=True))
    tls_certificate_file: str | None = setting(None, text(optional=True))
    tls_key_file: str | None = setting(None, text(optional=True))
    user: str | None = setting(None, text(optional=True))
    password: str | None = setting(None, text(optional=True), secret=True)
    credentials_file: str | None = setting(None, text(optional=True))
    token: str | None = setting(None, text(optional=True), secret=True)
    window: int = setting(256, count(1, 65_536))
    max_payload: int = setting(1_048_576, count(1, 67_108_864))

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        for one, other in (("user", "password"), ("tls_certificate_file", "tls_key_file")):
            if (getattr(self, one) is None) != (getattr(self, other) is None):
                raise _wrong(f"{one.upper()} and {other.upper()} belong together; set both or neither")
        ways = [name for name in ("user", "credentials_file", "token") if getattr(self, name) is not None]
        if len(ways) > 1:
            raise _wrong(f"{' and '.join(map(str.upper, ways))} are ways to log in that exclude each other; set one")

    @property
    def tls(self) -> bool:
        """Say whether a connection without TLS is refused."""
        return any((self.tls_ca_file, self.tls_certificate_file)) or any(u.startswith("tls://") for u in self.server)


def _wrong(what: str) -> ConfigurationError:
    return ConfigurationError(f"SALON_JOBS['NATS']: {what}")
