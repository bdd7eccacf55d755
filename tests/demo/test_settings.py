"""Tests that each process takes the URL of its own role, and says which one is missing."""

from __future__ import annotations

import ast
import logging
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from django.core.exceptions import ImproperlyConfigured

from project import settings
from tests.interpreter import ROOT, run_python

URLS = {
    "DATABASE_URL_MIGRATOR": "postgresql://migrator:p@127.0.0.1:1/salon",
    "WORKER_DATABASE_URL": "postgresql://worker_runtime:p@127.0.0.1:1/salon",
    "DATABASE_URL": "postgresql://app:p@127.0.0.1:1/salon?pool=true",
}
DSN = {"SENTRY_DSN": "http://key@127.0.0.1:9/1"}


def settings_of(command: str, environment: dict[str, str]) -> dict[str, Any]:
    """Execute the settings as ``manage.py COMMAND`` would."""
    inherited = settings.INHERITED_ENVIRONMENT
    with patch.dict(os.environ, inherited | environment, clear=True), patch.object(sys, "argv", ["manage.py", command]):
        return runpy.run_path(str(ROOT / "project" / "settings.py"))


def process(environment: dict[str, str], show: str) -> subprocess.CompletedProcess[str]:
    """Print an expression in a worker's process: for what settings start or import there."""
    code = f"import sys; sys.argv = ['manage.py', 'runworker']; from project import settings; print({show})"
    return run_python("-c", code, environment={**settings.INHERITED_ENVIRONMENT, **URLS, **environment})


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
    assert settings_of(command, URLS)["DATABASES"]["default"]["USER"] == user
    others = {name: url for name, url in URLS.items() if name != variable}
    with pytest.raises(ImproperlyConfigured, match=f"{command} needs {variable}"):
        settings_of(command, others)


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
    with pytest.raises(ImproperlyConfigured, match="WORKER_DATABASE_URL is malformed; write postgresql://") as refused:
        settings_of("runworker", {**URLS, "WORKER_DATABASE_URL": url})
    assert "secret" not in str(refused.value)


def test_what_needs_no_database_runs_without_a_url() -> None:
    assert not settings_of("bootstrap_roles", {})["DATABASES"]["default"]["NAME"]


def test_a_pool_asked_for_in_the_url_is_a_flag() -> None:
    assert settings_of("runserver", URLS)["DATABASES"]["default"]["OPTIONS"] == {"pool": True}


def test_children_of_the_demo_inherit_no_secret() -> None:
    assert not [name for name in settings.INHERITED_ENVIRONMENT if "PASSWORD" in name or name.endswith("_URL")]


def test_sentry_is_told_what_the_environment_says_and_nothing_personal() -> None:
    shown = (
        "(lambda c: ([c.options[name] for name in ('environment', 'release', 'sample_rate',"
        " 'include_local_variables', 'send_default_pii')], c.get_integration('logging')._handler.level,"
        " settings.SALON_JOBS['SENTRY_MONITORS']))(__import__('sentry_sdk').get_client())"
    )
    by_default = ast.literal_eval(process({**DSN, "SENTRY_RELEASE": "1.2"}, shown).stdout)
    assert by_default == (["prod", "1.2", 1.0, False, False], logging.WARNING, True)
    given = {
        "SENTRY_ENVIRONMENT": "test",
        "SENTRY_SAMPLE_RATE": "0.5",
        "SENTRY_LEVEL": "error",
        "SENTRY_MONITORS": "off",
        "SENTRY_RELEASE": "1.2",
    }
    asked = ast.literal_eval(process({**DSN, **given}, shown).stdout)
    assert asked == (["test", "1.2", 0.5, False, False], logging.ERROR, False)


@pytest.mark.parametrize(
    ("variable", "value", "complaint"),
    [
        ("SENTRY_LEVEL", "loud", "SENTRY_LEVEL is 'loud'; write debug"),
        ("SENTRY_SAMPLE_RATE", "all", "SENTRY_SAMPLE_RATE is 'all'; write a number from 0 to 1"),
        ("SENTRY_SAMPLE_RATE", "2", "SENTRY_SAMPLE_RATE is '2'; write a number from 0 to 1"),
    ],
)
def test_what_makes_no_sense_to_sentry_is_refused(variable: str, value: str, complaint: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=complaint):
        settings_of("runworker", {**URLS, **DSN, variable: value})


def test_without_a_dsn_or_tracing_neither_runs() -> None:
    for environment in ({}, {"SENTRY_MONITORS": "on"}):
        shown = (
            "__import__('sentry_sdk').get_client().is_active(), settings.SALON_JOBS['SENTRY_MONITORS'],"
            " settings.SALON_JOBS['TRACING'], 'opentelemetry' in sys.modules"
        )
        assert process(environment, shown).stdout.split() == ["False"] * 4


def test_a_flag_that_is_neither_on_nor_off_is_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match="TRACING is 'maybe'; write true or false"):
        settings_of("runworker", {**URLS, "TRACING": "maybe"})


def test_sns_is_configured_by_the_environment() -> None:
    given = {
        "SNS_REGION": "eu-west-1",
        "SNS_ALLOW_LIST": "a,b",
        "SNS_REFETCH_INTERVAL": "off",
        "SNS_ACCESS_KEY": "a",
        "SNS_SECRET_KEY": "b",
        "SNS_ENDPOINT": "",
    }
    assert settings_of("runworker", {**URLS, **given})["SALON_JOBS"]["SNS"] == {
        "REGION": "eu-west-1",
        "ALLOW_LIST": ["a", "b"],
        "REFETCH_INTERVAL": None,
        "ACCESS_KEY": ("a", "b"),
    }


def test_the_web_process_serves_what_collectstatic_gathered(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "project", tmp_path / "project")
    shown: list[str] = []
    for _ in range(2):
        found = runpy.run_path(str(tmp_path / "project" / "settings.py"))
        shown.append(found["MIDDLEWARE"][1].rpartition(".")[2])
        (tmp_path / "static").mkdir(exist_ok=True)
    assert shown == ["SessionMiddleware", "WhiteNoiseMiddleware"], "before the sessions, which a file does not need"
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    assert "python manage.py collectstatic --no-input" in dockerfile


def test_consumers_come_from_the_environment() -> None:
    consumers = '{"pings": {"SOURCE": "rn::azurequeue:::pings", "TASKS": {"ping": "ping"}}}'
    found = settings_of("consume_queue", {**URLS, "CONSUMERS": consumers})
    assert found["SALON_JOBS"]["CONSUMERS"]["pings"]["TASKS"] == {"ping": "ping"}


def test_help_needs_no_url() -> None:
    done = run_python("manage.py", "runworker", "--help", environment=settings.INHERITED_ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert "--with-scheduler" in done.stdout
