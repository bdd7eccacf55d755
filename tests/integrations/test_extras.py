"""Shows that optional packages load only where they are used, and that a missing one is named with its extra."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.tiny_project import TinyProject

NO_PSYCOPG = "salon_jobs needs psycopg 3 and the library libpq: pip install 'salon-jobs[binary]'"
CHECK = ("check", "--tag", "salon_jobs")
OPTIONAL = (
    "sentry_sdk",
    "health_check",
    "rest_framework",
    "nats",
    "boto3",
    "azure",
    "opentelemetry",
    "prometheus_client",
)


def without(package: str) -> str:
    return f"import sys; sys.modules[{package!r}] = None"


def test_a_project_that_names_no_extra_loads_none_and_needs_none(tmp_path: Path) -> None:
    project = TinyProject(tmp_path, first="\n".join(map(without, OPTIONAL)), tasks="from salon_jobs import task, cron")
    done = project.manage(*CHECK)
    assert done.returncode == 0, done.stderr


def test_the_packages_of_the_extras_are_not_loaded_where_they_are_installed(tmp_path: Path) -> None:
    assert TinyProject(tmp_path).loads(*OPTIONAL, "salon_jobs.integrations.sentry") == []


@pytest.mark.parametrize(
    ("first", "given", "expected"),
    [("", {"SENTRY": True}, True), ("import sentry_sdk", {}, True), ("import sentry_sdk", {"SENTRY": False}, False)],
    ids=["by the setting", "imported by the project", "imported and not wanted"],
)
def test_sentry_is_loaded_when_the_project_says_so(
    tmp_path: Path, first: str, given: dict[str, bool], expected: bool
) -> None:
    project = TinyProject(tmp_path, first=first, SALON_JOBS=given)
    assert project.loads("salon_jobs.integrations.sentry") == ["salon_jobs.integrations.sentry"] * expected


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


@pytest.mark.parametrize(
    ("package", "given", "environment", "errors"),
    [
        (
            "sentry_sdk",
            {"SALON_JOBS": {"SENTRY": True}},
            {},
            ["(salon_jobs.E060) SALON_JOBS['SENTRY'] needs sentry-sdk", "pip install 'salon-jobs[sentry]'"],
        ),
        (
            "health_check",
            {"urls": "from salon_jobs.integrations.health_check import HealthView"},
            {},
            ["ConfigurationError: the health view needs django-health-check: pip install 'salon-jobs[health]'\n"],
        ),
        (
            "rest_framework",
            {"urls": "from salon_jobs.integrations.rest_framework import TenantAPIView"},
            {},
            ["ConfigurationError: TenantAPIView needs djangorestframework: pip install 'salon-jobs[drf]'\n"],
        ),
        ("opentelemetry", {"SALON_JOBS": {"TRACING": True}}, {}, ["pip install 'salon-jobs[opentelemetry]'"]),
        ("psycopg", {}, {}, [NO_PSYCOPG]),
        ("none", {}, {"PSYCOPG_IMPL": "c"}, [NO_PSYCOPG]),
    ],
    ids=["sentry", "health", "rest framework", "opentelemetry", "psycopg", "libpq"],
)
def test_a_package_that_is_missing_is_an_error_that_names_the_extra(
    tmp_path: Path, package: str, given: dict[str, Any], environment: dict[str, str], errors: list[str]
) -> None:
    forked = package == "opentelemetry"  # the others are loaded where forks come from
    done = TinyProject(tmp_path, first=without(package), forked=forked, **given).manage("check", **environment)
    assert done.returncode == 1
    assert [error for error in errors if error not in done.stderr] == []
    assert (package == "sentry_sdk") is ("Traceback" not in done.stderr)


def test_a_broker_without_its_sdk_says_how_to_get_it(tmp_path: Path) -> None:
    project = TinyProject(tmp_path, first="\n".join(map(without, ("nats", "boto3", "azure"))), forked=True)
    program = (
        "from salon_jobs.brokers.registry import make_publisher\n"
        "from salon_jobs.core.errors import ConfigurationError\n"
        "for service in ('nats', 'sns', 'azurequeue'):\n"
        "    try: make_publisher(service).open()\n"
        "    except ConfigurationError as error: print(error)\n"
    )
    done = project.manage("shell", "--no-imports", "-c", program)
    assert re.findall(r"pip install 'salon-jobs\[(\w+)\]'", done.stdout) == ["nats", "sns", "azure"], done.stderr
