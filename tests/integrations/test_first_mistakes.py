"""Shows what a new project says about the mistakes of its first minutes, by its own manage.py."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.backend.aliases import BACKEND
from tests.backend.django_tasks_api import PACKAGE
from tests.databases import spare_database
from tests.integrations.tiny_project import APPS, TinyProject
from tests.settings import url_for

pytestmark = pytest.mark.process
TASKS = "from salon_jobs import task\n@task(name='greet')\ndef greet(name: str) -> None: ...\n"
new_project = partial(TinyProject, forked=True)
ENQUEUE = ("shell", "--no-imports", "-c", "from shop.tasks import greet; greet.enqueue(name='Ada')")


@pytest.mark.parametrize("command", [("check",), ("runworker", "--burst")])
def test_missing_pgtrigger_is_named(tmp_path: Path, command: tuple[str, ...]) -> None:
    apps = tuple(app for app in APPS if app != "pgtrigger")
    done = new_project(tmp_path, apps=apps).manage(*command)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("salon_jobs needs pgtrigger: add 'pgtrigger' to INSTALLED_APPS")
    assert done.stderr.count("Traceback") == 1


def test_missing_app_is_named_by_an_enqueue(tmp_path: Path, empty_url: str) -> None:
    apps = tuple(app for app in APPS if app != "salon_jobs")
    done = new_project(tmp_path, url=empty_url, apps=apps, tasks=TASKS).manage(*ENQUEUE)
    assert done.returncode == 1
    assert "add 'salon_jobs' to INSTALLED_APPS, and run: python manage.py migrate" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", [("check",), ("migrate",), ENQUEUE, ("runworker", "--burst")])
def test_another_database_is_one_clear_message(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = new_project(tmp_path, url=f"sqlite:///{tmp_path}/db.sqlite3", tasks=TASKS).manage(*command)
    assert done.returncode == 1
    assert "the database 'default' is SQLite, but salon_jobs needs PostgreSQL" in done.stderr
    assert (
        "set the alias's ENGINE to 'django.db.backends.postgresql', or keep the jobs in a second database"
        in done.stderr
    )
    assert "named by SALON_JOBS['DATABASE']" in done.stderr
    assert "docker run --publish 5432:5432" in done.stderr
    assert command is ENQUEUE or "Traceback" not in done.stderr
    assert "salon_jobs.E002" in done.stderr or command[0] not in ("check", "runworker")
    assert "models.W" not in done.stderr, "Django warns of each index"


def test_another_database_whose_driver_fails_first(tmp_path: Path) -> None:
    """Under DEBUG Django formats every statement, which SQLite's driver does not survive."""
    tasks = f"from {PACKAGE} import task\n@task\ndef greet(name): ...\n"
    given: dict[str, Any] = {"DEBUG": True, "TASKS": {"default": {"BACKEND": BACKEND}}}
    done = new_project(tmp_path, url=f"sqlite:///{tmp_path}/db.sqlite3", tasks=tasks, **given).manage(*ENQUEUE)
    assert "ConfigurationError: the database 'default' is SQLite, but" in done.stderr.splitlines()[-1]


def test_missing_migration_is_named(tmp_path: Path, empty_url: str) -> None:
    project, health = new_project(tmp_path, url=empty_url, tasks=TASKS), ("--health-addr", "127.0.0.1:0")
    services = (("runworker", "--burst", *health), ("runscheduler", "--burst", *health))
    subcommands = [("salon_jobs", name) for name in ("list", "stats", "limit", "doctor")]
    for command in (*services, *subcommands, ENQUEUE):
        done = project.manage(*command)
        assert done.returncode == 1
        line = done.stderr.splitlines()[-1]
        assert line.endswith("; run: python manage.py migrate"), command
        assert command is ENQUEUE or "WORKER.SCHEMA_MISSING: " in line, command
        assert command is ENQUEUE or "Traceback" not in done.stderr, command


def test_worker_without_tasks_says_so(tmp_path: Path, migrated: None) -> None:
    with spare_database(copied=True) as name:
        project, shop = new_project(tmp_path, url=url_for(None, name), tasks=TASKS), tmp_path / "shop"

        def said() -> str:
            done = project.manage("runworker", "--burst", "--processes", "1", "--health-addr", "127.0.0.1:0")
            assert done.returncode == 0, done.stderr
            return done.stderr

        assert "No task is declared" not in said()
        (shop / "tasks.py").rename(shop / "task.py")
        for module in ("tests", "models"):
            (shop / f"{module}.py").write_text("")
        text = said()
        assert "No task is declared" in text
        assert "Apps searched: shop. Rename shop/task.py, or import it in tasks.py, if its tasks are meant" in text


def test_wrong_scheme_to_listen_at_is_refused(tmp_path: Path) -> None:
    done = new_project(tmp_path, SALON_JOBS={"LISTEN": "redis://127.0.0.1:6379/0"}).manage("check")
    assert done.returncode == 1
    assert "(salon_jobs.E001) SALON_JOBS['LISTEN'] must be" in done.stderr
    assert "postgresql://role:password@host:5432/database, with that scheme instead of 'redis'" in done.stderr
    assert "Traceback" not in done.stderr
