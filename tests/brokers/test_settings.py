"""Tests what the sections of the brokers accept and refuse."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

import pytest

from salon_jobs.brokers.aws.settings import SnsSettings
from salon_jobs.brokers.azure.settings import AzureSettings
from salon_jobs.brokers.nats.settings import NatsSettings
from salon_jobs.conf.reader import read_section
from salon_jobs.core.errors import ConfigurationError

KEY = base64.b64encode(b"a secret key").decode()


def azure(**given: Any) -> AzureSettings:
    return read_section(AzureSettings, given, path="SALON_JOBS['AZURE']")


def nats(**given: Any) -> NatsSettings:
    return read_section(NatsSettings, given, path="SALON_JOBS['NATS']")


def sns(**given: Any) -> SnsSettings:
    return read_section(SnsSettings, given, path="SALON_JOBS['SNS']")


def test_defaults_of_nats() -> None:
    assert (nats().max_reconnects, nats().tls) == (5, False)
    assert nats().reconnect_wait == timedelta(seconds=2)
    assert nats().jitter == timedelta(milliseconds=100)
    assert nats(SERVER="tls://a").jitter == timedelta(seconds=1)
    assert nats(SERVER="tls://a", RECONNECT_JITTER=0).jitter == timedelta(0)


@pytest.mark.parametrize("value", ["nats://a:4222, tls://b", ["nats://a:4222", "tls://b"]])
def test_several_servers(value: Any) -> None:
    assert nats(SERVER=value).server == ("nats://a:4222", "tls://b")


@pytest.mark.parametrize("given", [{"TLS_CA_FILE": "ca"}, {"SERVER": "tls://a"}, {"TLS_CERTIFICATE_FILES": ["c", "k"]}])
def test_what_demands_tls(given: dict[str, Any]) -> None:
    assert nats(**given).tls


def test_defaults_of_sns() -> None:
    assert (sns().region, sns().endpoint, sns().access_key) == ("ap-northeast-1", None, None)
    assert sns().refetch_interval == timedelta(hours=24)
    assert (sns().allow_list, sns().deny_list, sns().skip_events, sns().ignore_list) == ((), (), (), ())


def test_topics_are_kept_by_name() -> None:
    assert sns(ALLOW_LIST=["a", "arn:aws:sns:eu-west-1:123456789012:b.fifo"]).allow_list == ("a", "b.fifo")


def test_secret_is_not_shown() -> None:
    assert "secret" not in repr(sns(ACCESS_KEY=("a", "secret")))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
def test_line_break_after_a_secret_is_no_part(end: str) -> None:
    """A file that a secret is read from ends with one. Spaces may belong to a password."""
    assert nats(TOKEN=f"s3cret {end}").token == "s3cret "
    assert nats(USER=(f"relay{end}", f" s3cret{end}")).user == ("relay", " s3cret")
    assert sns(ACCESS_KEY=[f"AKIA{end}", f"s3cret{end}"]).access_key == ("AKIA", "s3cret")
    for last in (f"AccountKey={KEY}", "EndpointSuffix=core.windows.net", "EndpointSuffix=core.windows.net;"):
        given = f"AccountName=salon;AccountKey={KEY}" if last.startswith("E") else "AccountName=salon"
        assert azure(CONNECTION_STRING=f"{given};{last}{end}").connection_string == f"{given};{last}"
    assert azure(CONNECTION_STRING=f"UseDevelopmentStorage=true{end}").connection_string == "UseDevelopmentStorage=true"


NO_SERVERS: tuple[Any, ...] = ("", [], "localhost", "http://a", "nats://", "nats://a:x", "nats://u:secret@a", None, [4])
PLAIN_QUEUES = r"PLAIN_QUEUES'\] must be a list of names of queues"


@pytest.mark.parametrize(
    ("read", "given", "error"),
    [
        *((nats, {"SERVER": value}, r"SALON_JOBS\['NATS'\]\['SERVER'\] must be a URL") for value in NO_SERVERS),
        (nats, {"USER": "u"}, r"\['USER'\] must be a pair \(user, password\) of strings"),
        (nats, {"TLS_CERTIFICATE_FILES": "k"}, r"FILES'\] must be a pair \(certificate, key\) of strings"),
        (nats, {"USER": ("u", "p"), "TOKEN": "t"}, "USER and TOKEN"),
        (nats, {"CREDENTIALS_FILE": "c", "TOKEN": "t"}, "CREDENTIALS_FILE and TOKEN"),
        (nats, {"TOKEN": "\n"}, r"\['TOKEN'\] must be a string that is not empty, or None, not str$"),
        (nats, {"USER": ("secret", "\n")}, r"\['USER'\] must be a pair \(user, password\) of strings"),
        (nats, {"MAX_RECONNECTS": -1}, "MAX_RECONNECTS"),
        (nats, {"TIMEOUT": 0}, "TIMEOUT"),
        (nats, {"RECONNECT_JITTER": -1}, "RECONNECT_JITTER"),
        (nats, {"MAX_PAYLOAD": True}, "MAX_PAYLOAD"),
        (sns, {"REGION": "Tokyo"}, r"\['SNS'\]\['REGION'\] must be a region such as 'ap-northeast-1', not 'Tokyo'"),
        (sns, {"ENDPOINT": "localhost:4566"}, r"\['ENDPOINT'\] must be an address such as 'https://"),
        (sns, {"SQS_ENDPOINT": "https://a"}, "unknown key 'SQS_ENDPOINT'; did you mean 'ENDPOINT'"),
        (sns, {"ACCESS_KEY": "secret"}, r"\['ACCESS_KEY'\] must be a pair \(access key, secret key\) .*not str$"),
        (sns, {"ACCESS_KEY": ["a", ""]}, r"\['ACCESS_KEY'\] must be a pair .* not list$"),
        (sns, {"ACCESS_KEY": ["a", "secret", "b"]}, r"\['ACCESS_KEY'\] must be a pair"),
        (sns, {"ALLOW_LIST": "orders"}, r"\['ALLOW_LIST'\] must be a list of topics, each a name or an ARN of SNS"),
        (sns, {"DENY_LIST": ["arn:aws:sqs:eu-west-1:1:a"]}, r"\['DENY_LIST'\] must be a list of topics"),
        (sns, {"IGNORE_LIST": ["orders*"]}, r"\['IGNORE_LIST'\] must be a list of topics"),
        (sns, {"SKIP_EVENTS": [""]}, r"\['SKIP_EVENTS'\] must be a list of strings"),
        (sns, {"REFETCH_INTERVAL": 0}, r"\['REFETCH_INTERVAL'\] must be .* more than zero, .*, or None"),
        (sns, {"TOPICS": []}, "unknown key 'TOPICS'"),
        (azure, {"CONNECTION_STRING": "secret"}, r"CONNECTION_STRING'\] must be .* name=value"),
        (azure, {"CONNECTION_STRING": f"AccountKey={KEY}"}, "names the account"),
        (azure, {"CONNECTION_STRING": "AccountName=secret"}, "with a key"),
        (azure, {"CONNECTION_STRING": "AccountName=salon;AccountKey=secret"}, "AccountKey is complete"),
        (azure, {"CONNECTION_STRING": 5}, r"name=value .* not int"),
        (azure, {"VISIBILITY_TIMEOUT": 0.5}, r"VISIBILITY_TIMEOUT'\] must be .* from one second to seven days"),
        (azure, {"VISIBILITY_TIMEOUT": timedelta(days=8)}, "seven days"),
        (azure, {"PLAIN_QUEUES": "parse-tasks"}, PLAIN_QUEUES),
        (azure, {"PLAIN_QUEUES": ["Parse"]}, PLAIN_QUEUES),
        (azure, {"PLAIN_QUEUES": ["rn::azurequeue:::parse-tasks"]}, PLAIN_QUEUES),
    ],
)
def test_wrong_settings_are_named(read: Any, given: dict[str, Any], error: str) -> None:
    """No secret is shown."""
    with pytest.raises(ConfigurationError, match=error) as raised:
        read(**given)
    said = str(raised.value).replace("secret key", "")
    assert "secret" not in said
    assert KEY not in said
