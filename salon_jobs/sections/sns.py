"""Declares how to reach AWS SNS, and SQS on the way back."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from salon_jobs.core.errors import ConfigurationError
from salon_jobs.sections.reading import count, duration, flag, names, setting, text

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
        found = [_TOPIC.fullmatch(name) for name in names(value)]
    except ValueError:
        found = [None]
    topics = [match[1] for match in found if match is not None]
    if len(topics) != len(found):
        raise ValueError("a list of topics, each a name or an ARN of SNS")
    return tuple(topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnsSettings:
    """Holds how to reach AWS SNS, and SQS on the way back.

    Without keys boto3 finds its credentials itself (environment, profile, the role of the machine). The lists of
    topics hold names; an ARN that is given is reduced to its name. ``concurrency`` is batches at once, for each topic.
    """

    region: str = setting("ap-northeast-1", _region)
    endpoint: str | None = setting(None, _endpoint)
    sqs_endpoint: str | None = setting(None, _endpoint)
    access_key: str | None = setting(None, text(optional=True))
    secret_key: str | None = setting(None, text(optional=True), secret=True)
    allow_list: tuple[str, ...] = setting((), _topics)
    deny_list: tuple[str, ...] = setting((), _topics)
    skip_events: tuple[str, ...] = setting((), names)
    ignore_list: tuple[str, ...] = setting((), _topics)
    refetch: bool = setting(True, flag)
    refetch_interval: timedelta = setting(timedelta(hours=24), duration())
    timeout: timedelta = setting(timedelta(seconds=5), duration())
    concurrency: int = setting(8, count(1, 100))

    def __post_init__(self) -> None:
        """Refuse one key without the other."""
        if (self.access_key is None) != (self.secret_key is None):
            missing = "ACCESS_KEY" if self.access_key is None else "SECRET_KEY"
            raise ConfigurationError(
                f"SALON_JOBS['SNS'] has no {missing}: give both keys, or neither to use the credentials of the machine"
            )
