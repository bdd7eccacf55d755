"""Holds the layers: imports go downward only, and the few modules that own something own it alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "salon_jobs"

# Lower numbers know nothing of higher ones. A longer prefix wins over a shorter one.
LAYERS = {
    "salon_jobs.core": 0,
    "salon_jobs.sections": 0,
    "salon_jobs.conf": 1,
    "salon_jobs.nats": 2,
    "salon_jobs.sql": 1,
    "salon_jobs.models": 2,
    "salon_jobs.tenancy": 2,
    "salon_jobs.tenancy.middleware": 10,
    "salon_jobs.jobs.options": 3,
    "salon_jobs.jobs.payload": 3,
    "salon_jobs.jobs.timeouts": 3,
    "salon_jobs.jobs.registry": 3,
    "salon_jobs.jobs.wake": 3,
    "salon_jobs.jobs.store": 3,
    "salon_jobs.jobs.lanes": 4,
    "salon_jobs.jobs.rules": 5,
    "salon_jobs.jobs.limits": 6,
    "salon_jobs.jobs.depths": 6,
    "salon_jobs.overview": 10,
    "salon_jobs.sources": 3,
    "salon_jobs.publishers": 3,
    "salon_jobs.publishers.jobs": 9,
    "salon_jobs.publishers.registry": 4,
    "salon_jobs.outbox": 9,
    "salon_jobs.outbox.emit": 5,
    "salon_jobs.outbox.wake": 5,
    "salon_jobs.outbox.inbox": 5,
    "salon_jobs.schedule.cron": 3,
    "salon_jobs.schedule.entries": 3,
    "salon_jobs.schedule.store": 3,
    "salon_jobs.jobs.transactions": 3,
    "salon_jobs.jobs.current": 4,
    "salon_jobs.jobs.event_loop": 3,
    "salon_jobs.jobs.enqueue_cursor": 4,
    "salon_jobs.jobs.enqueue_trace": 4,
    "salon_jobs.jobs.enqueue_batches": 5,
    "salon_jobs.jobs.enqueue": 6,
    "salon_jobs.jobs.statistics": 6,
    "salon_jobs.jobs.task": 7,
    "salon_jobs.jobs.operate": 7,
    "salon_jobs.jobs.fan_out": 8,
    "salon_jobs.jobs.executor": 8,
    "salon_jobs.integrations": 8,
    "salon_jobs.migration_ops": 8,
    "salon_jobs.doctor": 8,
    "salon_jobs.migrations": 9,
    "salon_jobs.health": 9,
    "salon_jobs.runtime": 9,
    "salon_jobs.jobs": 9,
    "salon_jobs.schedule": 9,
    "salon_jobs.offboarding": 10,
    "salon_jobs.testing": 10,
    "salon_jobs.checks": 10,
    "salon_jobs.apps": 11,
    "salon_jobs.admin": 11,
    "salon_jobs.management": 11,
    "salon_jobs.templatetags": 11,
    "salon_jobs": 11,
}
OWNERS = {
    "sentry_sdk": {
        "salon_jobs.integrations.sentry",
        "salon_jobs.integrations.sentry_monitors",
        "salon_jobs.integrations.sentry_spans",
    },
    "opentelemetry": {"salon_jobs.integrations.opentelemetry"},
    "croniter": {"salon_jobs.schedule.cron"},
    "health_check": {"salon_jobs.health.checks"},
    "msgspec": {
        "salon_jobs.core.log_events",
        "salon_jobs.jobs.payload",
        "salon_jobs.outbox.emit",
        "salon_jobs.publishers.nats_answers",
        "salon_jobs.publishers.nats_batch",
        "salon_jobs.publishers.nats_headers",
        "salon_jobs.sources.azure_queue",
    },
    "nats": {"salon_jobs.nats.connection"},
    "boto3": {"salon_jobs.publishers.aws"},
    "botocore": {"salon_jobs.publishers.aws"},
    "azure": {"salon_jobs.publishers.azure_account"},
    "requests": {"salon_jobs.publishers.azure_account"},
    "prometheus_client": {"salon_jobs.integrations.prometheus"},
    "environ": set(),
    "project": set(),
    "django.conf": {"salon_jobs.conf"},
    # Its fields and lookups want it among the INSTALLED_APPS of the host (an error of the checks from Django 6.1 on).
    "django.contrib.postgres": set(),
}


def layer(module: str) -> int:
    """Return the layer of a module by its longest known prefix."""
    parts = module.split(".")
    return next(LAYERS[name] for n in range(len(parts), 0, -1) if (name := ".".join(parts[:n])) in LAYERS)


def name_of(path: Path) -> str:
    """Return the dotted name of a file."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def imports(path: Path) -> set[str]:
    """Return every module a file imports, at its top or in functions; ``from package import module`` is the module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if is_module(name) else node.module for name in names}
    return found


def is_module(name: str) -> bool:
    """Tell whether a dotted name is a file or folder of the package."""
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_go_downward(path: Path) -> None:
    module = name_of(path)
    if module == "salon_jobs":
        return  # the public names are resolved at first use, from every layer
    upward = {
        other
        for other in imports(path)
        if other.startswith("salon_jobs.") and layer(other) > layer(module) and not _for_types_alone(path, other)
    }
    assert upward == set()


def test_jobs_and_outbox_do_not_know_each_other_but_through_what_consumes() -> None:
    def users(of: str, inside: str) -> set[str]:
        return {
            name_of(path)
            for path in (PACKAGE / inside).rglob("*.py")
            if any(other == of or other.startswith(f"{of}.") for other in imports(path))
        }

    assert users("salon_jobs.outbox", "jobs") == set()
    assert users("salon_jobs.jobs", "outbox") == {"salon_jobs.outbox.arrivals", "salon_jobs.outbox.intake"}


@pytest.mark.parametrize("package", OWNERS)
def test_what_one_module_owns_no_other_imports(package: str) -> None:
    users = {
        name_of(path)
        for path in FILES
        if any(other == package or other.startswith(f"{package}.") for other in imports(path))
    }
    assert users == OWNERS[package]


@pytest.mark.parametrize(
    "name", ["rn::nats:::orders", "arn:aws:sns:eu-west-1:123456789012:orders", "rn::azurequeue:::orders"]
)
def test_whoever_only_emits_imports_no_sdk(name: str) -> None:
    program = (
        "import sys\n"
        "from django.conf import settings; settings.configure(DATABASES={'default': {}})\n"
        "from salon_jobs.core.destinations import parse_destination\n"
        "from salon_jobs.publishers.registry import checker_for\n"
        f"destination = parse_destination({name!r})\n"
        "checker_for(destination.service).check(destination, aggregate_id='1', event='e', payload='{}', headers='{}')\n"
        "print(sorted({'nats', 'boto3', 'botocore', 'azure', 'requests'} & sys.modules.keys()))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_nobody_reads_the_environment_but_the_projects_settings() -> None:
    # The settings read it by django-environ; what starts a server for a command hands its own environment on; and the
    # web server's entry names the settings, as manage.py does.
    files = [*FILES, *(ROOT / "project").rglob("*.py")]
    readers = {name_of(path) for path in files if _reads_environment(path)}
    assert readers == {"project.settings", "project.local.postgres_run", "project.wsgi"}


def test_core_knows_neither_django_nor_the_database() -> None:
    for path in (PACKAGE / "core").glob("*.py"):
        assert not {other for other in imports(path) if other.split(".")[0] in ("django", "psycopg")}, path


def test_every_statement_says_what_it_is_for_what_it_locks_and_for_whom() -> None:
    statements = sorted((PACKAGE / "sql").glob("*.sql"))
    assert len(statements) > 15
    for path in statements:
        header = [line for line in path.read_text().splitlines() if line.startswith("--")]
        text = " ".join(header)
        assert header, path
        assert "Locks:" in text or path.name == "add_job_function.sql", path
        assert "Role:" in text or "EXECUTE:" in text, path


def _reads_environment(path: Path) -> bool:
    names = {"environ", "environb", "getenv", "getenvb"}
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Attribute(value=ast.Name("os"), attr=name) if name in names:
                return True
            case ast.ImportFrom(module="os", names=aliases) if names & {alias.name for alias in aliases}:
                return True
            case ast.Import(names=aliases) if "environ" in {alias.name for alias in aliases}:
                return True
            case _:
                continue
    return False


def _for_types_alone(path: Path, module: str) -> bool:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for inner in ast.walk(node):
                if isinstance(inner, ast.ImportFrom) and inner.module == module:
                    return True
    return False
