"""Runs the system checks as a user meets them: by the commands, with settings that are right and wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import manage

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
        ({**PLAIN, "ONE_USER_URL": "sqlite://:memory:"}, ("salon_jobs.E002", "'default' is not PostgreSQL")),
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


@pytest.mark.parametrize("first", [True, False])
def test_another_apps_migrate_that_wins_is_a_warning(tmp_path: Path, first: bool) -> None:
    commands = tmp_path / "other" / "management" / "commands"
    commands.mkdir(parents=True)
    (tmp_path / "other" / "__init__.py").touch()
    (commands / "migrate.py").write_text("from django.core.management.commands.migrate import Command")
    apps = "['other', *INSTALLED_APPS]" if first else "[*INSTALLED_APPS, 'other']"
    (tmp_path / "beside.py").write_text(f"from project.settings import *\nINSTALLED_APPS = {apps}")
    done = manage(
        "check", "--tag", "salon_jobs", PYTHONPATH=str(tmp_path), DJANGO_SETTINGS_MODULE="beside", DATABASE_URL=URL
    )
    assert done.returncode == 0, done.stderr
    told = "salon_jobs.W001) the command migrate is that of 'other'" in done.stderr
    assert told is first
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
    told = "salon_jobs.E006) OPTIONS['isolation_level'] of the database 'default' is not READ COMMITTED" in done.stderr
    assert told is wrong
