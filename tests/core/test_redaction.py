"""What is hidden of payloads and texts."""

from __future__ import annotations

from typing import Any

import pytest

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.core.redaction import SENSITIVE, UNREADABLE, redacted, redacted_text, unredacted, without_secrets


def test_sensitive_keys_at_any_depth() -> None:
    """Nothing else is hidden, and what was given is not changed."""
    plain = {"number": 41, "author": "Basho", "note": "password"}
    secret = {
        "Password": "x",
        "access_token": {"a": 1},
        "Authorization": "Basic …",
        "cardNumber": "4",
        "private key": "k",
    }
    payload = {**plain, **secret, "user": [{"api-key": "k", "name": "Mori"}]}
    hidden = {**plain, **dict.fromkeys(secret, "***"), "user": [{"api-key": "***", "name": "Mori"}]}
    assert redacted(payload, SENSITIVE) == hidden
    assert payload["Password"] == "x"


_STORED: dict[str, Any] = {
    "token": "t",
    "note": "n",
    "to": [{"name": "A", "pwd": "a"}, {"name": "B", "pwd": "b"}],
    "by": {"otp": 1},
}


@pytest.mark.parametrize(
    ("edited", "stored"),
    [
        ({}, {}),
        ({"note": "m"}, {"note": "m"}),
        ({"token": "***", "by": {"otp": "***", "x": 1}}, {"token": "t", "by": {"otp": 1, "x": 1}}),
        ({"token": "new", "by": {"otp": 2}}, {"token": "new", "by": {"otp": 2}}),
        (
            {"to": [{"name": "A", "pwd": "***"}, {"name": "C", "pwd": "c"}]},
            {"to": [_STORED["to"][0], {"name": "C", "pwd": "c"}]},
        ),
    ],
)
def test_hidden_values_left_alone_stay(edited: Any, stored: Any) -> None:
    assert unredacted(edited, _STORED, SENSITIVE) == stored
    assert unredacted(redacted(_STORED, SENSITIVE), _STORED, SENSITIVE) == _STORED


@pytest.mark.parametrize(
    "edited",
    [
        {"note": "***"},
        {"secret": "***"},
        {"by": "***"},
        {"to": [{"name": "B", "pwd": "***"}, {"name": "A", "pwd": "***"}]},
        {"to": [{"name": "A", "pwd": "***"}, {"name": "C", "pwd": "***"}]},
        {"to": [{"name": "A", "pwd": "***"}] * 3},
    ],
)
def test_stars_elsewhere_are_refused(edited: Any) -> None:
    with pytest.raises(ValueError, match=r"\*\*\* stands for a value that is hidden here"):
        unredacted(edited, _STORED, SENSITIVE)


def test_patterns_replace_default() -> None:
    assert redacted({"password": "x", "phone": "1"}, ("PHONE",)) == {"password": "x", "phone": "***"}
    assert redacted({"password": "x"}, ()) == {"password": "x"}


def test_cut_json_naming_a_secret() -> None:
    assert redacted_text('{"user": {"Token": "x"}}', SENSITIVE) == {"user": {"Token": "***"}}
    assert redacted_text('{"user": "Mori", "no', SENSITIVE) == '{"user": "Mori", "no'
    for text in ('{"api-key": "x", "no', r'"{\"apiKey\": \"x', "<api_key>x</api_key>", "[" * 100_000 + "api key"):
        assert redacted_text(text, SENSITIVE) == UNREADABLE


@pytest.mark.parametrize("wrong", ["password", [1], [""]])
def test_invalid_setting_is_refused(settings: Any, wrong: object) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "REDACT": wrong}
    with pytest.raises(ConfigurationError, match="REDACT"):
        _ = conf.redact


SECRET = """
pwd db_pwd jwt bearer session_id sessionId dsn SENTRY_DSN database_url connectionString cookies
credentials private-key passphrase otp totp SharedAccessKey AccountKey proxy-authorization
aws_secret_access_key
"""


@pytest.mark.parametrize("key", SECRET.split())
def test_default_hides_usual_names(key: str) -> None:
    assert redacted({key: "x"}, SENSITIVE) == {key: "***"}
    assert without_secrets(f"{key}=abc") == f"{key}=***"


ORDINARY = """
author description session cookie_consent bear records passed pin hotel option connection url adsn_count
"""


@pytest.mark.parametrize("key", ORDINARY.split())
def test_default_hides_no_ordinary_names(key: str) -> None:
    assert redacted({key: "x"}, SENSITIVE) == {key: "x"}


@pytest.mark.parametrize(
    "text",
    [
        "password=hunter2",
        "login with password 'hunter2' failed",
        "cannot log in with token hunter2",
        "the session id is hunter2",
        "{'user': 1, 'password': 'hunter2'}",
        '{"user": 1, "passwords": ["hunter2"]}',
        r'"{\"apiKey\": \"hunter2\"}"',
        "[(b'authorization', b'Basic hunter2')]",
        "Authorization: Bearer hunter2",
        "got Bearer hunter2",
        "Cookie: a=hunter2; b=hunter2",
        "Key (token)=(hunter2) already exists.",
        "postgresql://user:hunter2@host/database",
        "amqp://:hunter2@host",
        "DATABASE_URL=postgres://u:hunter2@h",
        "host=x password=hunter2 dbname=y",
        "Config(user='x', api_key='hunter2')",
        "<api_key>hunter2</api_key>",
        "password: it's hunter2",
        "password = 'cut off hunter2",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJodW50ZXIyIn0.hunter2",
        "Endpoint=sb://x;SharedAccessKey=hunter2",
        "AccessToken: hunter2",
        "AccessKeyId: hunter2",
        "SecretString: hunter2",
        "TokenExpired: the token hunter2 is too old",
        "shop.errors.InvalidPasswordError: password=hunter2",
        "{'TokenError': 'hunter2'}",
        "TokenError=hunter2",
        "tokenError: hunter2",
    ],
)
def test_values_are_hidden_in_text(text: str) -> None:
    shown = without_secrets(text)
    assert "hunter2" not in shown
    assert "***" in shown
    assert without_secrets(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        'password authentication failed for user "worker"',
        "KeyError: 'password'",
        "the password is required",
        "Invalid token",
        "bearer authentication is required",
        "f() got an unexpected keyword argument 'token'",
        'duplicate key value violates unique constraint "users_token_key"',
        "http://host:8000/path?mail=a@b",
        "records now passed snapshots",
        "TokenExpired: the customer signed in too long ago",
        "the call raised TokenExpired: the customer signed in too long ago",
        "shop.errors.CredentialsMissing: sign in first",
        "InvalidPasswordError: at least eight characters",
        "JwtSecretException: rotated (see the runbook)",
    ],
)
def test_texts_without_values_stay(text: str) -> None:
    assert without_secrets(text) == text


def test_code_hides_literals() -> None:
    assert without_secrets('raise Failed("password=x")', code=True) == 'raise Failed("password=***")'
    assert without_secrets('connect(password="x", user="y")', code=True) == 'connect(password="***", user="y")'
    for line in ("token = read(token, 'name')", "raise Failed(token=token1234)", 'headers["Authorization"]'):
        assert without_secrets(line, code=True) == line
