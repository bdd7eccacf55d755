"""Tests what SALON_JOBS["NATS"] accepts and refuses."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from salon_jobs.brokers.nats.settings import NatsSettings
from salon_jobs.conf.reader import read_section
from salon_jobs.core.errors import ConfigurationError


def read(**given: Any) -> NatsSettings:
    return read_section(NatsSettings, given, path="SALON_JOBS['NATS']")


def test_defaults() -> None:
    read_defaults = read()
    assert (read_defaults.max_reconnects, read_defaults.tls) == (5, False)
    assert read_defaults.jitter == timedelta(milliseconds=100)
    assert read(SERVER="tls://a").jitter == timedelta(seconds=1)
    assert read(SERVER="tls://a", RECONNECT_JITTER=0).jitter == timedelta(0)


@pytest.mark.parametrize("value", ["nats://a:4222, tls://b", ["nats://a:4222", "tls://b"]])
def test_several_servers(value: Any) -> None:
    assert read(SERVER=value).server == ("nats://a:4222", "tls://b")


@pytest.mark.parametrize(
    "value", ["", [], "localhost", "http://a", "nats://", "nats://a:x", "nats://u:secret@a", None, [4]]
)
def test_what_is_no_server_is_refused_without_showing_a_password(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"SALON_JOBS\['NATS'\]\['SERVER'\] must be a URL") as raised:
        read(SERVER=value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"USER": "u"}, r"\['USER'\] must be a pair \(user, password\) of strings"),
        ({"TLS_CERTIFICATE_FILES": "k"}, r"\['TLS_CERTIFICATE_FILES'\] must be a pair \(certificate, key\) of strings"),
        ({"USER": ("u", "p"), "TOKEN": "t"}, "USER and TOKEN"),
        ({"CREDENTIALS_FILE": "c", "TOKEN": "t"}, "CREDENTIALS_FILE and TOKEN"),
    ],
)
def test_contradictions_name_the_fields(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        read(**given)


@pytest.mark.parametrize(
    ("key", "value"), [("MAX_RECONNECTS", -1), ("TIMEOUT", 0), ("RECONNECT_JITTER", -1), ("MAX_PAYLOAD", True)]
)
def test_numbers_out_of_bounds_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=key):
        read(**{key: value})


@pytest.mark.parametrize("given", [{"TLS_CA_FILE": "ca"}, {"SERVER": "tls://a"}, {"TLS_CERTIFICATE_FILES": ["c", "k"]}])
def test_tls_is_demanded_by_what_belongs_to_it(given: dict[str, Any]) -> None:
    assert read(**given).tls
