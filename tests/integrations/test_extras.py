"""Shows that optional packages load only where they are used, and that a missing one is named with its extra."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.tiny_project import TinyProject

CHECK = ("check", "--tag", "salon_jobs")
OPTIONAL = ("sentry_sdk", "health_check", "nats", "boto3", "azure", "opentelemetry", "prometheus_client")


def without(package: str) -> str:
    return f"import sys; sys.modules[{package!r}] = None"


def test_a_project_that_names_no_extra_loads_none_and_needs_none(tmp_path: Path) -> None:
    project = TinyProject(tmp_path, first="\n".join(map(without, OPTIONAL)), tasks="from salon_jobs import task, cron")
    done = project.manage(*CHECK)
    assert done.returncode == 0, done.stderr


def test_the_packages_of_the_extras_are_not_loaded_where_they_are_installed(tmp_path: Path) -> None:
    assert TinyProject(tmp_path).loads(*OPTIONAL) == []


@pytest.mark.parametrize(
    ("first", "given", "expected"),
    [
        ("", {}, False),
        ("", {"SENTRY": True}, True),
        ("import sentry_sdk", {}, True),
        ("import sentry_sdk", {"SENTRY": False}, False),
    ],
    ids=["neither", "by the setting", "imported by the project", "imported and not wanted"],
)
def test_sentry_is_loaded_when_the_project_says_so(
    tmp_path: Path, first: str, given: dict[str, bool], expected: bool
) -> None:
    project = TinyProject(tmp_path, first=first, SALON_JOBS=given)
    assert project.loads("salon_jobs.integrations.sentry") == ["salon_jobs.integrations.sentry"] * expected


def test_sentry_without_its_package_is_an_error_that_names_the_extra(tmp_path: Path) -> None:
    done = TinyProject(tmp_path, first=without("sentry_sdk"), SALON_JOBS={"SENTRY": True}).manage(*CHECK)
    assert done.returncode == 1
    assert "(salon_jobs.E060) SALON_JOBS['SENTRY'] needs sentry-sdk" in done.stderr
    assert "pip install 'salon-jobs[sentry]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_sentry_that_is_imported_too_late_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(
        "from django.apps import AppConfig\n"
        "class Late(AppConfig):\n"
        "    name = 'shop'\n"
        "    def ready(self):\n"
        "        import sentry_sdk\n"
    )
    apps = ("django.contrib.auth", "django.contrib.contenttypes", "salon_jobs", "pgtrigger", "late.Late")
    done = TinyProject(tmp_path, apps=apps).manage(*CHECK)
    assert done.returncode == 0
    assert "(salon_jobs.W060) sentry_sdk was imported after Django started" in done.stderr
    assert "set SALON_JOBS['SENTRY'] to True" in done.stderr


def test_the_health_view_without_its_package_names_the_extra(tmp_path: Path) -> None:
    urls = "from salon_jobs.integrations.health_check import HealthView"
    done = TinyProject(tmp_path, first=without("health_check"), urls=urls).manage("check")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "ConfigurationError: the health view needs django-health-check: pip install 'salon-jobs[health]'"
    )


@pytest.mark.parametrize("environment", [{}, {"PSYCOPG_IMPL": "c"}], ids=["no psycopg", "no libpq"])
def test_without_psycopg_the_command_is_named(tmp_path: Path, environment: dict[str, str]) -> None:
    project = TinyProject(tmp_path, first="" if environment else without("psycopg"))
    done = project.manage("check", **environment)
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert "salon_jobs needs psycopg 3 and the library libpq: pip install 'salon-jobs[binary]'" in line
