"""Declares ``SALON_JOBS["OUTBOX"]``: who emits, and how the relay works."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, cast

from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.errors import ConfigurationError, MessageInvalid
from salon_jobs.sections.reading import count, duration, setting, text, texts

# What AWS takes for a topic in a second.
_MOST_FOR_SNS: Final = 3000
_SERVICE: Final = re.compile(r"[a-z][a-z0-9-]*")
_rate: Final = count(1, 10_000_000, optional=True)


def _rates(value: Any) -> dict[str, int | None]:
    try:
        given = dict[Any, Any](cast("Any", value)) if isinstance(value, dict) else {"": None}
        for name in given:
            if not isinstance(name, str) or not _SERVICE.fullmatch(name):
                parse_destination(name)
        return {name: _rate(rate) for name, rate in given.items()}
    except (MessageInvalid, TypeError, ValueError):
        raise ValueError(
            "a dict of services such as 'nats', or ARNs and RNs, to whole numbers from 1 to 10000000, or None"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxSettings:
    """Holds what emit and relay need. ``throughput`` is messages a second for each aggregate type; None: no limit.

    ``throughput_of`` has other rates, by service or by aggregate type. SNS never gets more than 3,000.

    ``publishers`` maps a service (the third part of an ``aggregate_type``) to the dotted path of its class, and
    ``sources`` does for ``consume_queue``.
    """

    producer: str | None = setting(None, text(optional=True))
    poll_interval: timedelta = setting(timedelta(seconds=5), duration())
    fetch_limit: int = setting(1000, count(1, 10_000))
    retry_count: int = setting(10, count(1, 1000))
    retry_backoff: timedelta = setting(timedelta(seconds=20), duration())
    throughput: int | None = setting(3000, _rate)
    throughput_of: Mapping[str, int | None] = setting(dict[str, "int | None"], _rates)
    publishers: Mapping[str, str] = setting(dict[str, str], texts)
    sources: Mapping[str, str] = setting(dict[str, str], texts)
    ownership: timedelta = setting(timedelta(seconds=15), duration())
    retain_published: timedelta | None = setting(timedelta(days=7), duration(optional=True))
    retain_skipped: timedelta | None = setting(timedelta(days=30), duration(optional=True))
    retain_inbox: timedelta | None = setting(timedelta(days=30), duration(optional=True))

    def rate_of(self, aggregate_type: str) -> int | None:
        """Return how many messages a second may go to a destination: its own rate, else its service's, else all's."""
        service = _service_of(aggregate_type)
        rate = self.throughput_of.get(aggregate_type, self.throughput_of.get(service, self.throughput))
        return min(rate or _MOST_FOR_SNS, _MOST_FOR_SNS) if service == "sns" else rate

    def check_sns_rates(self, *, in_use: bool) -> None:
        """Refuse rates above what SNS takes. Raises ConfigurationError naming the key.

        ``in_use``: there is a section for SNS, so that the rate of all destinations is meant for it too.
        """
        for name, rate in self.throughput_of.items():
            if _service_of(name) == "sns":
                in_use = True
                if not _fits_sns(rate):
                    raise ConfigurationError(
                        f"SALON_JOBS['OUTBOX']['THROUGHPUT_OF'][{name!r}] must be {_MOST_FOR_SNS} or less, the most "
                        f"that SNS takes a second, not {rate}"
                    )
        if in_use and "sns" not in self.throughput_of and not _fits_sns(self.throughput):
            raise ConfigurationError(
                f"SALON_JOBS['OUTBOX']['THROUGHPUT'] is {self.throughput}, and SNS takes {_MOST_FOR_SNS} a second at "
                f"most: set SALON_JOBS['OUTBOX']['THROUGHPUT_OF']['sns'] to {_MOST_FOR_SNS} or less"
            )

    def require_producer(self) -> str:
        """Return the name that messages carry. Raises ConfigurationError."""
        if self.producer is None:
            raise ConfigurationError("SALON_JOBS['OUTBOX']['PRODUCER'] must name this application: messages carry it")
        return self.producer


def _service_of(name: str) -> str:
    """Return the service of a service's own name, an ARN or an RN."""
    return name.split(":")[2] if name.count(":") > 1 else name


def _fits_sns(rate: int | None) -> bool:
    return rate is not None and rate <= _MOST_FOR_SNS
