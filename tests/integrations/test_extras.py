"""Shows that optional packages load only where they are used, and that a missing one is named with its extra."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.tiny_project import APPS, TinyProject

NO_PSYCOPG = r"salon_jobs needs psycopg 3 and the library libpq: pip install 'salon-jobs\[binary\]'"
NO_SENTRY = r"\(salon_jobs.E060\) SALON_JOBS\['SENTRY'\] needs sentry-sdk(.|\n)*pip install 'salon-jobs\[sentry\]'"
NO_HEALTH = r"ConfigurationError: the health view needs django-health-check: pip install 'salon-jobs\[health\]'\n"
NO_REST = r"ConfigurationError: TenantAPIView needs djangorestframework: pip install 'salon-jobs\[drf\]'\n"
IMPORT = "from salon_jobs.integrations"
CHECK = ("check", "--tag", "salon_jobs")
pytestmark = pytest.mark.process
BROKERS = ("nats", "boto3", "azure")
OPTIONAL = (*BROKERS, "sentry_sdk", "health_check", "rest_framework", "opentelemetry", "prometheus_client")


def without(package: str) -> str:
    return f"import sys; sys.modules[{package!r}] = None"


def test_project_without_extras_needs_none(tmp_path: Path) -> None:
    project = TinyProject(tmp_path, first="\n".join(map(without, OPTIONAL)), tasks="from salon_jobs import task, cron")
    done = project.manage(*CHECK)
    assert done.returncode == 0, done.stderr


def test_installed_extras_are_not_loaded(tmp_path: Path) -> None:
    assert TinyProject(tmp_path).loads(*OPTIONAL, "salon_jobs.integrations.sentry") == []


@pytest.mark.parametrize(
    ("first", "given", "expected"),
    [("", {"SENTRY": True}, True), ("import sentry_sdk", {}, True), ("import sentry_sdk", {"SENTRY": False}, False)],
    ids=["by the setting", "imported by the project", "imported and not wanted"],
)
def test_sentry_is_loaded_when_wanted(tmp_path: Path, first: str, given: dict[str, bool], expected: bool) -> None:
    project = TinyProject(tmp_path, first=first, SALON_JOBS=given)
    assert project.loads("salon_jobs.integrations.sentry") == ["salon_jobs.integrations.sentry"] * expected


def test_late_import_of_sentry_is_a_warning(tmp_path: Path) -> None:
    ready = "    name = 'shop'\n    def ready(self):\n        import sentry_sdk\n"
    (tmp_path / "late.py").write_text(f"from django.apps import AppConfig\nclass Late(AppConfig):\n{ready}")
    done = TinyProject(tmp_path, apps=(*APPS[:-1], "late.Late")).manage(*CHECK)
    assert done.returncode == 0
    assert "(salon_jobs.W060) sentry_sdk was imported after Django started" in done.stderr
    assert "set SALON_JOBS['SENTRY'] to True" in done.stderr


@pytest.mark.parametrize(
    ("package", "given", "environment", "error"),
    [
        ("sentry_sdk", {"SALON_JOBS": {"SENTRY": True}}, {}, NO_SENTRY),
        ("health_check", {"urls": f"{IMPORT}.health_check import HealthView"}, {}, NO_HEALTH),
        ("rest_framework", {"urls": f"{IMPORT}.rest_framework import TenantAPIView"}, {}, NO_REST),
        ("opentelemetry", {"SALON_JOBS": {"TRACING": True}}, {}, r"pip install 'salon-jobs\[opentelemetry\]'"),
        ("psycopg", {}, {}, NO_PSYCOPG),
        ("none", {}, {"PSYCOPG_IMPL": "c"}, NO_PSYCOPG),
    ],
    ids=["sentry", "health", "rest framework", "opentelemetry", "psycopg", "libpq"],
)
def test_missing_package_names_the_extra(
    tmp_path: Path, package: str, given: dict[str, Any], environment: dict[str, str], error: str
) -> None:
    forked = package == "opentelemetry"  # the others are loaded where forks come from
    done = TinyProject(tmp_path, first=without(package), forked=forked, **given).manage("check", **environment)
    assert done.returncode == 1
    assert re.search(error, done.stderr), done.stderr
    assert (package == "sentry_sdk") is ("Traceback" not in done.stderr)


def test_missing_sdk_of_a_broker_names_the_extra(tmp_path: Path) -> None:
    project = TinyProject(tmp_path, first="\n".join(map(without, BROKERS)), forked=True)
    program = (
        "from salon_jobs.brokers.registry import make_publisher\n"
        "from salon_jobs.core.errors import ConfigurationError\n"
        "for service in ('nats', 'sns', 'azurequeue'):\n"
        "    try: make_publisher(service).open()\n"
        "    except ConfigurationError as error: print(error)\n"
    )
    done = project.manage("shell", "--no-imports", "-c", program)
    assert re.findall(r"pip install 'salon-jobs\[(\w+)\]'", done.stdout) == ["nats", "sns", "azure"], done.stderr
