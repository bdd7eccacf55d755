"""Runs the system checks as a user meets them: with settings that are right and wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from psycopg import IsolationLevel

from salon_jobs.checks import check_all, check_producer, check_settings
from tests.conftest import manage
from tests.interpreter import run_python

URL = "postgresql://app:p@127.0.0.1:1/x"
PLAIN = {"DJANGO_SETTINGS_MODULE": "tests.migrations.plain_settings", "ONE_USER_URL": "postgresql://u:p@127.0.0.1:1/x"}


@pytest.mark.parametrize("settings", [{}, PLAIN], ids=["demo", "plain"])
def test_nothing_is_wrong_with_right_settings(settings: dict[str, str]) -> None:
    done = manage("check", "--tag", "salon_jobs", **settings)
    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout


@pytest.mark.parametrize("command", [("check", "--tag", "salon_jobs"), ("runworker", "--burst")])
def test_a_wrong_setting_is_named(command: tuple[str, ...]) -> None:
    done = manage(*command, **{**PLAIN, "ONE_USER_URL": "sqlite://:memory:"})
    assert done.returncode != 0
    assert "salon_jobs.E002" in done.stderr
    assert "is SQLite, but salon_jobs needs PostgreSQL" in done.stderr


@pytest.mark.parametrize("command", ["runworker", "runscheduler"])
def test_a_database_without_a_name_is_told_in_one_line(command: str) -> None:
    done = manage(command, "--burst", **{**PLAIN, "ONE_USER_URL": "postgresql://u:p@127.0.0.1:1/"})
    assert done.returncode == 1
    assert "CommandError: SETTINGS.INVALID: settings.DATABASES is improperly configured" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("first", [True, False])
def test_another_apps_commands_that_win_are_warnings(tmp_path: Path, first: bool) -> None:
    commands = tmp_path / "other" / "management" / "commands"
    commands.mkdir(parents=True)
    (tmp_path / "other" / "__init__.py").touch()
    for name, module in (("migrate", "commands.migrate"), ("runworker", "base")):
        (commands / f"{name}.py").write_text(f"from django.core.management.{module} import *")
    apps = "['other', *INSTALLED_APPS]" if first else "[*INSTALLED_APPS, 'other']"
    (tmp_path / "beside.py").write_text(f"from project.settings import *\nINSTALLED_APPS = {apps}")
    done = manage(
        "check", "--tag", "salon_jobs", PYTHONPATH=str(tmp_path), DJANGO_SETTINGS_MODULE="beside", DATABASE_URL=URL
    )
    assert done.returncode == 0, done.stderr
    for warning in (
        "salon_jobs.W001) 'other' overrides the migrate command",
        "salon_jobs.W003) `python manage.py runworker` is the command of 'other'",
    ):
        assert (warning in done.stderr) is first
    assert done.stderr.count("put 'salon_jobs' before it in INSTALLED_APPS") == 2 * first


def test_a_misspelt_setting_is_told_with_the_one_that_was_meant(tmp_path: Path) -> None:
    (tmp_path / "misspelt.py").write_text(
        "from project.settings import *\nSALON_JOBS = {**SALON_JOBS, 'MAX_ATEMPTS': 3}"
    )
    done = manage("runworker", PYTHONPATH=str(tmp_path), DJANGO_SETTINGS_MODULE="misspelt", WORKER_DATABASE_URL=URL)
    assert done.returncode == 1
    assert "salon_jobs.E001) SALON_JOBS has an unknown key 'MAX_ATEMPTS'; did you mean 'MAX_ATTEMPTS'?" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def alias(settings: Any) -> Iterator[dict[str, Any]]:
    """Return what ``DATABASES`` says of the jobs' alias; nothing connects to it."""
    settings.SALON_JOBS = {}
    kept = connections["default"].settings_dict
    connections["default"].settings_dict = {**kept, "OPTIONS": {}}
    yield connections["default"].settings_dict
    connections["default"].settings_dict = kept


@pytest.mark.parametrize(
    ("level", "wrong"),
    [("READ_UNCOMMITTED", False), ("READ_COMMITTED", False), ("REPEATABLE_READ", True), ("SERIALIZABLE", True)],
)
def test_an_isolation_that_the_statements_cannot_work_under_is_refused(
    alias: dict[str, Any], level: str, wrong: bool
) -> None:
    alias["OPTIONS"] = {"isolation_level": IsolationLevel[level]}
    assert [error.id for error in check_settings()] == ["salon_jobs.E006"] * wrong


@pytest.mark.parametrize(
    ("host", "options", "by_default", "warned"),
    [
        ("a,b", {}, "", True),
        ("a", {"hostaddr": "10.0.0.1,10.0.0.2"}, "", True),
        ("a,b", {"target_session_attrs": "any"}, "", True),
        ("a,b", {"target_session_attrs": "read-write"}, "", False),
        ("a,b", {"target_session_attrs": "primary"}, "", False),
        ("a,b", {}, "read-write", False),
        ("a", {}, "", False),
    ],
)
def test_several_hosts_of_which_one_can_be_a_standby_are_warned_about(
    alias: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    options: dict[str, str],
    by_default: str,
    warned: bool,
) -> None:
    alias.update(HOST=host, OPTIONS=options)
    monkeypatch.setenv("PGTARGETSESSIONATTRS", by_default)
    assert [warning.id for warning in check_settings()] == ["salon_jobs.W004"] * warned


REMEDY = "SALON_JOBS = {'OUTBOX': {'PRODUCER': 'shop'}}"
QUEUE = {
    "AZURE": {"VISIBILITY_TIMEOUT": 5},
    "CONSUMERS": {"files": {"SOURCE": "rn::azurequeue:::files", "TASKS": {"e": "ping"}}},
}


def project(folder: Path, **salon_jobs: object) -> dict[str, str]:
    """Write the settings of a project that says this; return the environment of its processes."""
    (folder / "shop_settings.py").write_text(
        f"from tests.migrations.plain_settings import *\nALLOWED_HOSTS = ['*']\nSALON_JOBS = {salon_jobs!r}"
    )
    return {**PLAIN, "PYTHONPATH": str(folder), "DJANGO_SETTINGS_MODULE": "shop_settings"}


OUTBOX = {"OUTBOX": {"THROUGHPUT": 100}}


def test_an_outbox_without_a_producer_is_an_error_of_a_command(tmp_path: Path) -> None:
    done = manage("runworker", "--burst", **project(tmp_path, **OUTBOX))
    assert done.returncode == 1
    assert "ConfigurationError: SALON_JOBS['OUTBOX']['PRODUCER'] is not set" in done.stderr
    assert REMEDY in done.stderr


def test_an_outbox_without_a_producer_is_an_error_of_a_web_process(tmp_path: Path) -> None:
    web = "import django.core.wsgi; django.core.wsgi.get_wsgi_application()"
    done = run_python("-c", web, environment={**os.environ, **project(tmp_path, **OUTBOX)})
    assert done.returncode == 1
    assert "SALON_JOBS['OUTBOX']['PRODUCER'] is not set: it is the name of this application" in done.stderr


@pytest.mark.parametrize(
    ("sections", "sign"),
    [
        ({"NATS": {"CLIENT_NAME": "shop"}}, "SALON_JOBS['NATS'] is"),
        ({"SNS": {"REGION": "eu-west-1"}, **QUEUE}, "SALON_JOBS['SNS'] is"),
    ],
    ids=["nats", "sns beside azure"],
)
def test_a_broker_from_which_nobody_reads_needs_a_producer(settings: Any, sections: dict[str, Any], sign: str) -> None:
    settings.SALON_JOBS = sections
    [error] = check_producer()
    assert (error.id, error.msg) == ("salon_jobs.E052", f"SALON_JOBS['OUTBOX']['PRODUCER'] is not set, and {sign}")
    assert REMEDY in (error.hint or "")
    assert error in check_all()


@pytest.mark.parametrize("command", [("relay_outbox", "--burst"), ("runworker", "--with-relay", "--burst")])
def test_a_relay_needs_a_producer(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = manage(*command, "--health-addr", "127.0.0.1:0", **project(tmp_path))
    assert done.returncode == 1
    assert "CommandError: SETTINGS.INVALID: SALON_JOBS['OUTBOX']['PRODUCER'] is not set: it is" in done.stderr
    assert REMEDY in done.stderr


@pytest.mark.parametrize(
    "sections",
    [{}, QUEUE, {"OUTBOX": {"SOURCES": {"a": "b.C"}}}, {"OUTBOX": {"PRODUCER": "shop"}}],
    ids=["a plain queue", "a consumer", "a source of its own", "a producer"],
)
def test_what_emits_nothing_needs_no_producer(settings: Any, sections: dict[str, Any]) -> None:
    settings.SALON_JOBS = sections
    assert check_producer() == []
