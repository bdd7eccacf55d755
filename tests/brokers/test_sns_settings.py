"""Reads SALON_JOBS["SNS"]: right values, wrong ones, and what the project takes from the environment."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from salon_jobs.brokers.aws.settings import SnsSettings
from salon_jobs.conf.reader import read_section
from salon_jobs.core.errors import ConfigurationError


def read(**given: Any) -> SnsSettings:
    return read_section(SnsSettings, given, path="SALON_JOBS['SNS']")


def test_the_defaults_are_those_of_the_specification() -> None:
    sns = read()
    assert (sns.region, sns.endpoint, sns.access_key) == ("ap-northeast-1", None, None)
    assert sns.refetch_interval == timedelta(hours=24)
    assert (sns.allow_list, sns.deny_list, sns.skip_events, sns.ignore_list) == ((), (), (), ())


def test_topics_are_kept_by_name() -> None:
    sns = read(ALLOW_LIST=["a", "arn:aws:sns:eu-west-1:123456789012:b.fifo"])
    assert sns.allow_list == ("a", "b.fifo")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"REGION": "Tokyo"}, r"\['SNS'\]\['REGION'\] must be a region such as 'ap-northeast-1', not 'Tokyo'"),
        ({"ENDPOINT": "localhost:4566"}, r"\['ENDPOINT'\] must be an address such as 'https://"),
        ({"SQS_ENDPOINT": "https://a"}, "unknown key 'SQS_ENDPOINT'; did you mean 'ENDPOINT'"),
        (
            {"ACCESS_KEY": "hidden"},
            r"\['ACCESS_KEY'\] must be a pair \(access key, secret key\) of strings, .*not str$",
        ),
        ({"ACCESS_KEY": ["a", ""]}, r"\['ACCESS_KEY'\] must be a pair .* not list$"),
        ({"ACCESS_KEY": ["a", "hidden", "b"]}, r"\['ACCESS_KEY'\] must be a pair"),
        ({"ALLOW_LIST": "orders"}, r"\['ALLOW_LIST'\] must be a list of topics, each a name or an ARN of SNS"),
        ({"DENY_LIST": ["arn:aws:sqs:eu-west-1:1:a"]}, r"\['DENY_LIST'\] must be a list of topics"),
        ({"IGNORE_LIST": ["orders*"]}, r"\['IGNORE_LIST'\] must be a list of topics"),
        ({"SKIP_EVENTS": [""]}, r"\['SKIP_EVENTS'\] must be a list of strings"),
        ({"REFETCH_INTERVAL": 0}, r"\['REFETCH_INTERVAL'\] must be .* more than zero, .*, or None"),
        ({"TOPICS": []}, "unknown key 'TOPICS'"),
    ],
)
def test_errors_name_the_field(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        read(**wrong)
    assert "hidden" not in str(caught.value)


def test_the_secret_is_not_shown() -> None:
    assert "hidden" not in repr(read(ACCESS_KEY=("a", "hidden")))
