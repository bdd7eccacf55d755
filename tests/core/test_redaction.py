"""Shows what is hidden of payloads."""

from __future__ import annotations

from typing import Any

import pytest

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.core.redaction import SENSITIVE, UNREADABLE, redacted, redacted_text


def test_sensitive_keys_are_hidden_at_any_depth_and_nothing_else() -> None:
    payload = {
        "number": 41,
        "Password": "x",
        "user": [{"api-key": "k", "name": "Mori"}],
        "access_token": {"a": 1},
        "Authorization": "Basic …",
        "author": "Basho",
        "note": "password",
        "cardNumber": "4",
        "private key": "k",
    }
    assert redacted(payload, SENSITIVE) == {
        "number": 41,
        "Password": "***",
        "user": [{"api-key": "***", "name": "Mori"}],
        "access_token": "***",
        "Authorization": "***",
        "author": "Basho",
        "note": "password",
        "cardNumber": "***",
        "private key": "***",
    }
    assert payload["Password"] == "x", "what was given is not changed"


def test_patterns_replace_the_default_and_none_hides_nothing() -> None:
    assert redacted({"password": "x", "phone": "1"}, ("PHONE",)) == {"password": "x", "phone": "***"}
    assert redacted({"password": "x"}, ()) == {"password": "x"}


def test_a_text_that_is_cut_or_no_json_is_hidden_where_it_names_a_secret() -> None:
    assert redacted_text('{"user": {"Token": "x"}}', SENSITIVE) == {"user": {"Token": "***"}}
    assert redacted_text('{"user": "Mori", "no', SENSITIVE) == '{"user": "Mori", "no'
    for text in ('{"api-key": "x", "no', r'"{\"apiKey\": \"x', "<api_key>x</api_key>", "[" * 100_000 + "api key"):
        assert redacted_text(text, SENSITIVE) == UNREADABLE


@pytest.mark.parametrize("wrong", ["password", [1], [""]])
def test_a_setting_that_names_no_keys_is_refused(settings: Any, wrong: object) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "REDACT": wrong}
    with pytest.raises(ConfigurationError, match="REDACT"):
        _ = conf.redact
