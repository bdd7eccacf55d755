"""Runs the system checks as a user meets them: by the commands, with settings that are right and wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import manage
from tests.interpreter import run_python

URL = "postgresql://app:p@127.0.0.1:1/x"
PLAIN = {"DJANGO_SETTINGS_MODULE": "tests.migrations.plain_settings", "ONE_USER_URL": "postgresql://u:p@127.0.0.1:1/x"}
TENANTS = {**PLAIN, "DJANGO_SETTINGS_MODULE": "tests.migrations.tenants_settings"}


@pytest.mark.parametrize("settings", [{}, PLAIN], ids=["demo", "plain"])
def test_nothing_is_wrong_with_right_settings(settings: dict[str, str]) -> None:
    done = manage("check", "--tag", "salon_jobs", **settings)
    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {**PLAIN, "ONE_USER_URL": "sqlite://:memory:"},
            ("salon_jobs.E002", "is SQLite, but salon_jobs needs PostgreSQL"),
        ),
        ({**TENANTS, "TENANTS_STORE_MODEL": "nowhere.Store"}, ("salon_jobs.E004", "'nowhere.Store' does not exist")),
        (
            {**TENANTS, "TENANTS_STORE_MODEL": "contenttypes.ContentType"},
            ("salon_jobs.E005", "not a UUIDField", "primary_key=True"),
        ),
        ({**TENANTS, "TENANTS_STORE_MODEL": "Store"}, ("SALON_JOBS['STORE_MODEL'] must be 'app_label.Model'",)),
    ],
)
@pytest.mark.parametrize("command", ["check", "runworker"])
def test_a_wrong_setting_is_named(settings: dict[str, str], expected: tuple[str, ...], command: str) -> None:
    done = manage(command, *(["--tag", "salon_jobs"] if command == "check" else ["--burst"]), **settings)
    assert done.returncode != 0
    for text in expected:
        assert text in done.stderr


@pytest.mark.parametrize("command", ["runworker", "runscheduler"])
def test_a_database_without_a_name_is_told_in_one_line(command: str) -> None:
    done = manage(command, "--burst", **{**PLAIN, "ONE_USER_URL": "postgresql://u:p@127.0.0.1:1/"})
    assert done.returncode == 1
    assert "CommandError: SETTINGS.INVALID: settings.DATABASES is improperly configured" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "module", "warning"),
    [
        ("migrate", "django.core.management.commands.migrate", "W001) 'other' overrides the migrate command"),
        ("runworker", "django.core.management.base", "W003) `python manage.py runworker` is the command of 'other'"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_another_apps_command_that_wins_is_a_warning(
    tmp_path: Path, first: bool, name: str, module: str, warning: str
) -> None:
    commands = tmp_path / "other" / "management" / "commands"
    commands.mkdir(parents=True)
    (tmp_path / "other" / "__init__.py").touch()
    (commands / f"{name}.py").write_text(f"from {module} import *")
    apps = "['other', *INSTALLED_APPS]" if first else "[*INSTALLED_APPS, 'other']"
    (tmp_path / "beside.py").write_text(f"from project.settings import *\nINSTALLED_APPS = {apps}")
    done = manage(
        "check", "--tag", "salon_jobs", PYTHONPATH=str(tmp_path), DJANGO_SETTINGS_MODULE="beside", DATABASE_URL=URL
    )
    assert done.returncode == 0, done.stderr
    assert (f"salon_jobs.{warning}" in done.stderr) is first
    assert ("put 'salon_jobs' before it in INSTALLED_APPS" in done.stderr) is first


@pytest.mark.parametrize("command", ["check", "runworker"])
def test_a_misspelt_setting_is_told_with_the_one_that_was_meant(tmp_path: Path, command: str) -> None:
    (tmp_path / "misspelt.py").write_text(
        "from project.settings import *\nSALON_JOBS = {**SALON_JOBS, 'MAX_ATEMPTS': 3}"
    )
    done = manage(
        command, PYTHONPATH=str(tmp_path), DJANGO_SETTINGS_MODULE="misspelt", DATABASE_URL=URL, WORKER_DATABASE_URL=URL
    )
    assert done.returncode == 1
    assert "salon_jobs.E001) SALON_JOBS has an unknown key 'MAX_ATEMPTS'; did you mean 'MAX_ATTEMPTS'?" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("level", "wrong"),
    [("READ_UNCOMMITTED", False), ("READ_COMMITTED", False), ("REPEATABLE_READ", True), ("SERIALIZABLE", True)],
)
def test_an_isolation_that_the_statements_cannot_work_under_is_refused(tmp_path: Path, level: str, wrong: bool) -> None:
    (tmp_path / "isolated.py").write_text(
        "from psycopg import IsolationLevel\nfrom tests.migrations.plain_settings import *\n"
        f"DATABASES['default']['OPTIONS'] = {{'isolation_level': IsolationLevel.{level}}}"
    )
    settings = {**PLAIN, "PYTHONPATH": str(tmp_path), "DJANGO_SETTINGS_MODULE": "isolated"}
    done = manage("check", "--tag", "salon_jobs", **settings)
    assert (done.returncode != 0) is wrong, done.stderr
    fault = "salon_jobs.E006) OPTIONS['isolation_level'] of the database 'default' is not READ COMMITTED" in done.stderr
    assert fault is wrong


@pytest.mark.parametrize(
    ("settings", "environment", "warned"),
    [
        ("HOST='a,b'", {}, True),
        ("HOST='a', OPTIONS={'hostaddr': '10.0.0.1,10.0.0.2'}", {}, True),
        ("HOST='a,b', OPTIONS={'target_session_attrs': 'any'}", {}, True),
        ("HOST='a,b', OPTIONS={'target_session_attrs': 'read-write'}", {}, False),
        ("HOST='a,b', OPTIONS={'target_session_attrs': 'primary'}", {}, False),
        ("HOST='a,b'", {"PGTARGETSESSIONATTRS": "read-write"}, False),
        ("HOST='a'", {}, False),
    ],
)
def test_several_hosts_of_which_one_can_be_a_standby_are_warned_about(
    tmp_path: Path, settings: str, environment: dict[str, str], warned: bool
) -> None:
    (tmp_path / "hosts.py").write_text(
        f"from tests.migrations.plain_settings import *\nDATABASES['default'].update({settings})"
    )
    names = {"PYTHONPATH": str(tmp_path), "DJANGO_SETTINGS_MODULE": "hosts"}
    done = manage("check", "--tag", "salon_jobs", **{**PLAIN, **names, **environment})
    assert done.returncode == 0, done.stderr
    assert ("salon_jobs.W004) the database 'default' has several hosts" in done.stderr) is warned


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


@pytest.mark.parametrize(
    "command", [("check",), ("runworker", "--burst"), ("shell", "-c", ""), ("runserver", "--noreload")]
)
def test_an_outbox_without_a_producer_is_an_error_of_every_command(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = manage(*command, **project(tmp_path, **OUTBOX))
    assert done.returncode == 1
    assert "ConfigurationError: SALON_JOBS['OUTBOX']['PRODUCER'] is not set" in done.stderr
    assert REMEDY in done.stderr


def test_an_outbox_without_a_producer_is_an_error_of_a_web_process(tmp_path: Path) -> None:
    web = "import django.core.wsgi; django.core.wsgi.get_wsgi_application()"
    done = run_python("-c", web, environment={**os.environ, **project(tmp_path, **OUTBOX)})
    assert done.returncode == 1
    assert "SALON_JOBS['OUTBOX']['PRODUCER'] is not set: it is the name of this application" in done.stderr


@pytest.mark.parametrize("command", [("check",), ("runworker", "--burst"), ("runserver", "--noreload")])
@pytest.mark.parametrize(
    ("sections", "sign"),
    [
        ({"NATS": {"CLIENT_NAME": "shop"}}, "SALON_JOBS['NATS'] is"),
        ({"SNS": {"REGION": "eu-west-1"}, **QUEUE}, "SALON_JOBS['SNS'] is"),
    ],
    ids=["nats", "sns beside azure"],
)
def test_a_broker_from_which_nobody_reads_needs_a_producer(
    tmp_path: Path, command: tuple[str, ...], sections: dict[str, object], sign: str
) -> None:
    done = manage(*command, **project(tmp_path, **sections))
    assert done.returncode == 1
    assert f"salon_jobs.E052) SALON_JOBS['OUTBOX']['PRODUCER'] is not set, and {sign}" in done.stderr
    assert REMEDY in done.stderr
    assert done.stderr.count("salon_jobs.E") == 1


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
def test_what_emits_nothing_needs_no_producer(tmp_path: Path, sections: dict[str, object]) -> None:
    done = manage("check", **project(tmp_path, **sections))
    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout
