"""The section ``SNS`` of the settings, for SQS too."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Final

from msgspec import Meta, convert

from salon_jobs.conf import section
from salon_jobs.conf.reader import SECRET, Duration, Names, Section, secret_pair

_TOPIC: Final = r"^(arn:aws[a-z-]*:sns:[a-z0-9-]*:[0-9]*:)?[A-Za-z0-9_-]{1,256}(\.fifo)?\Z"


def _topics(value: Any) -> tuple[str, ...]:
    names = convert(value, list[Annotated[str, Meta(pattern=_TOPIC)]])
    return tuple(name.rpartition(":")[2] for name in names)


_Region = Annotated[str, Meta(pattern=r"^[a-z]{2}[a-z0-9-]+\Z", description="a region such as 'ap-northeast-1'")]
_Endpoint = Annotated[
    str,
    Meta(
        pattern=r"^https?://[^\s/]+\S*\Z", description="an address such as 'https://sns.ap-northeast-1.amazonaws.com'"
    ),
]
_Keys = Annotated[tuple[str, str], Meta(description="a pair (access key, secret key) of strings"), secret_pair, SECRET]
_Topics = Annotated[tuple[str, ...], Meta(description="a list of topics, each a name or an ARN of SNS"), _topics]


class SnsSettings(Section, frozen=True):
    """Settings for AWS SNS, and for SQS on the way back.

    Without a key, boto3 finds credentials itself (environment, profile, the machine's role). The lists hold names of
    topics; an ARN is reduced to its name. With ``refetch_interval`` None, topics are read only at the start.
    """

    region: _Region = "ap-northeast-1"
    endpoint: _Endpoint | None = None
    access_key: _Keys | None = None
    allow_list: _Topics = ()
    deny_list: _Topics = ()
    skip_events: Names = ()
    ignore_list: _Topics = ()
    refetch_interval: Duration | None = timedelta(hours=24)


sns_settings = section("SNS", SnsSettings)
