"""The section ``SNS`` of the settings, for SQS too."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from salon_jobs.conf import section
from salon_jobs.conf.reader import duration, matching, names, optional, pair, secret_text, setting

_region: Final = matching(r"[a-z]{2}[a-z0-9-]+", "a region such as 'ap-northeast-1'")
_ENDPOINT: Final = re.compile(r"https?://[^\s/]+\S*")
_TOPIC: Final = re.compile(r"(?:arn:aws[a-z-]*:sns:[a-z0-9-]*:[0-9]*:)?([A-Za-z0-9_-]{1,256}(?:\.fifo)?)")


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
    access_key: tuple[str, str] | None = setting(
        None, optional(pair("access key", "secret key", each=secret_text)), secret=True
    )
    allow_list: tuple[str, ...] = setting((), _topics)
    deny_list: tuple[str, ...] = setting((), _topics)
    skip_events: tuple[str, ...] = setting((), names)
    ignore_list: tuple[str, ...] = setting((), _topics)
    refetch_interval: timedelta | None = setting(timedelta(hours=24), optional(duration))


settings = section("SNS", SnsSettings)
