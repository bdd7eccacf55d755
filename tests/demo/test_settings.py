"""Tests that each process takes the URL of its own role, and says which one is missing."""

from __future__ import annotations

import ast
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from project import settings
from tests.conftest import ROOT

URLS = {
    "DATABASE_URL_MIGRATOR": "postgresql://migrator:p@127.0.0.1:1/salon",
    "WORKER_DATABASE_URL": "postgresql://worker_runtime:p@127.0.0.1:1/salon",
    "DATABASE_URL": "postgresql://app:p@127.0.0.1:1/salon?pool=true",
}


def _settings(command: str, urls: dict[str, str], show: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.argv = ['manage.py', {command!r}]; from project import settings; print({show})"
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**settings.INHERITED_ENVIRONMENT, **urls},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


@pytest.mark.parametrize(
    ("command", "variable", "user"),
    [
        ("migrate", "DATABASE_URL_MIGRATOR", "migrator"),
        ("sqlmigrate", "DATABASE_URL_MIGRATOR", "migrator"),
        ("runworker", "WORKER_DATABASE_URL", "worker_runtime"),
        ("runscheduler", "WORKER_DATABASE_URL", "worker_runtime"),
        ("runserver", "DATABASE_URL", "app"),
    ],
)
def test_a_command_connects_as_its_own_role_or_names_what_is_missing(command: str, variable: str, user: str) -> None:
    found = _settings(command, URLS, "settings.DATABASES['default']['USER']")
    assert found.stdout.strip() == user, found.stderr

    others = {name: url for name, url in URLS.items() if name != variable}
    refused = _settings(command, others, "0")
    assert refused.returncode
    assert f"{command} needs {variable}" in refused.stderr


@pytest.mark.parametrize(
    "url",
    [
        "",
        "secret",
        "postgresql//u:secret@h/x",
        "postgresql://u:secret@h:port/x",
        "postgresql://u:secret@[::1/x",
        "mysql://u:secret@h/x",
        "foo://u:secret@h/x",
        "postgresql://u:secret@h:5432/",
    ],
)
def test_a_malformed_url_is_named_and_not_shown(url: str) -> None:
    refused = _settings("runworker", {**URLS, "WORKER_DATABASE_URL": url}, "0")

    assert refused.returncode
    last = refused.stderr.splitlines()[-1]
    assert "WORKER_DATABASE_URL is malformed; write postgresql://" in last
    assert "secret" not in last


def test_what_needs_no_database_runs_without_a_url() -> None:
    found = _settings("bootstrap_roles", {}, "repr(settings.DATABASES['default']['NAME'])")

    assert found.stdout.strip() == "''", found.stderr


def test_a_pool_asked_for_in_the_url_is_a_flag() -> None:
    found = _settings("runserver", URLS, "settings.DATABASES['default']['OPTIONS']")

    assert found.stdout.strip() == "{'pool': True}", found.stderr


def test_children_of_the_demo_inherit_no_secret() -> None:
    assert not [name for name in settings.INHERITED_ENVIRONMENT if "PASSWORD" in name or name.endswith("_URL")]


def test_a_sentry_dsn_starts_the_client_without_personal_data() -> None:
    shown = "(c := __import__('sentry_sdk').get_client()).is_active(), c.options.get('send_default_pii')"
    found = _settings("runworker", {**URLS, "SENTRY_DSN": "http://key@127.0.0.1:9/1"}, shown)
    assert found.stdout.split() == ["True", "False"], found.stderr
    assert _settings("runworker", URLS, shown).stdout.split()[0] == "False"


def test_what_sentry_is_told_is_what_the_environment_says() -> None:
    shown = (
        "[c.options[name] for name in ('environment', 'release', 'sample_rate', 'traces_sample_rate',"
        " 'include_local_variables')],"
        " c.get_integration('logging')._handler.level, settings.SALON_JOBS['SENTRY_MONITORS']"
    )
    shown = f"(lambda c: ({shown}))(__import__('sentry_sdk').get_client())"
    dsn = {"SENTRY_DSN": "http://key@127.0.0.1:9/1"}
    by_default = ast.literal_eval(_settings("runworker", {**URLS, **dsn, "SENTRY_RELEASE": "1.2"}, shown).stdout)
    assert by_default == (["prod", "1.2", 1.0, None, False], logging.WARNING, True)
    given = {
        "SENTRY_ENVIRONMENT": "test",
        "SENTRY_SAMPLE_RATE": "0.5",
        "SENTRY_TRACES_SAMPLE_RATE": "0.25",
        "SENTRY_LEVEL": "error",
        "SENTRY_MONITORS": "off",
        "SENTRY_RELEASE": "1.2",
    }
    asked = ast.literal_eval(_settings("runworker", {**URLS, **dsn, **given}, shown).stdout)
    assert asked == (["test", "1.2", 0.5, 0.25, False], logging.ERROR, False)
    refused = _settings("runworker", {**URLS, **dsn, "SENTRY_LEVEL": "loud"}, "0")
    assert "SENTRY_LEVEL is 'loud'; write debug" in refused.stderr
    for variable, value in (("SENTRY_SAMPLE_RATE", "all"), ("SENTRY_TRACES_SAMPLE_RATE", "2")):
        refused = _settings("runworker", {**URLS, **dsn, variable: value}, "0")
        assert f"{variable} is {value!r}; write a number from 0 to 1" in refused.stderr


@pytest.mark.parametrize(
    ("dsn", "asked", "monitors"),
    [
        ("", {}, False),
        ("", {"SENTRY_MONITORS": "on"}, False),
        ("http://key@127.0.0.1:9/1", {}, True),
        ("http://key@127.0.0.1:9/1", {"SENTRY_MONITORS": "off"}, False),
    ],
)
def test_sentry_monitors_are_on_only_where_there_is_a_dsn(dsn: str, asked: dict[str, str], monitors: bool) -> None:
    found = _settings("runworker", {**URLS, "SENTRY_DSN": dsn, **asked}, "settings.SALON_JOBS['SENTRY_MONITORS']")
    assert found.stdout.strip() == str(monitors), found.stderr


def test_tracing_is_off_unless_asked_for() -> None:
    shown = "settings.SALON_JOBS['TRACING'], 'opentelemetry' in sys.modules"
    assert _settings("runworker", URLS, shown).stdout.split() == ["False", "False"]


def test_sns_is_configured_by_the_environment() -> None:
    given = {
        "SNS_REGION": "eu-west-1",
        "SNS_ALLOW_LIST": "a,b",
        "SNS_REFETCH": "off",
        "SNS_TIMEOUT": "2.5",
        "SNS_CONCURRENCY": "3",
        "SNS_ENDPOINT": "",
    }
    found = _settings("runworker", {**URLS, **given}, "settings.SALON_JOBS['SNS']")
    assert ast.literal_eval(found.stdout) == {
        "REGION": "eu-west-1",
        "ALLOW_LIST": ["a", "b"],
        "REFETCH": False,
        "TIMEOUT": 2.5,
        "CONCURRENCY": 3,
    }


def test_the_web_process_serves_what_collectstatic_gathered(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "project", tmp_path / "project")
    show = "import sys; sys.argv = ['gunicorn']; from project import settings; print(settings.MIDDLEWARE[1])"
    shown: list[str] = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", show],
            cwd=tmp_path,
            env=settings.INHERITED_ENVIRONMENT,
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        shown.append(done.stdout.strip().rpartition(".")[2])
        (tmp_path / "static").mkdir(exist_ok=True)
    assert shown == ["SessionMiddleware", "WhiteNoiseMiddleware"], "before the sessions, which a file does not need"
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    assert "python manage.py collectstatic --no-input" in dockerfile


def test_consumers_come_from_the_environment() -> None:
    consumers = '{"pings": {"SOURCE": "rn::azurequeue:::pings", "TASKS": {"ping": "ping"}}}'
    found = _settings(
        "consume_queue", {**URLS, "CONSUMERS": consumers}, "settings.SALON_JOBS['CONSUMERS']['pings']['TASKS']"
    )
    assert found.stdout.strip() == "{'ping': 'ping'}", found.stderr
