"""Shows what a new project says about the mistakes of its first minutes, by its own manage.py."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.backend.aliases import BACKEND
from tests.backend.django_tasks_api import PACKAGE
from tests.integrations.tiny_project import APPS, TinyProject

TASKS = "from salon_jobs import task\n@task(name='greet')\ndef greet(name: str) -> None: ...\n"
new_project = partial(TinyProject, forked=True)
ENQUEUE = ("shell", "--no-imports", "-c", "from shop.tasks import greet; greet.enqueue(name='Ada')")


@pytest.mark.parametrize("command", [("check",), ("migrate",), ("runworker", "--burst")])
def test_without_pgtrigger_every_command_names_it(tmp_path: Path, command: tuple[str, ...]) -> None:
    apps = tuple(app for app in APPS if app != "pgtrigger")
    done = new_project(tmp_path, apps=apps).manage(*command)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("salon_jobs needs pgtrigger: add 'pgtrigger' to INSTALLED_APPS")
    assert done.stderr.count("Traceback") == 1


def test_without_the_app_an_enqueue_names_it(tmp_path: Path, empty_url: str) -> None:
    apps = tuple(app for app in APPS if app != "salon_jobs")
    done = new_project(tmp_path, url=empty_url, apps=apps, tasks=TASKS).manage(*ENQUEUE)
    assert done.returncode == 1
    assert "add 'salon_jobs' to INSTALLED_APPS, and run: python manage.py migrate" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", [("check",), ("migrate",), ENQUEUE, ("runworker", "--burst")])
def test_another_database_is_one_clear_message_with_what_to_do(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = new_project(tmp_path, url=f"sqlite:///{tmp_path}/db.sqlite3", tasks=TASKS).manage(*command)
    assert done.returncode == 1
    assert "the database 'default' is SQLite, but salon_jobs needs PostgreSQL" in done.stderr
    assert "set the alias's ENGINE to 'django.db.backends.postgresql'" in done.stderr
    assert "docker run --publish 5432:5432" in done.stderr
    assert command is ENQUEUE or "Traceback" not in done.stderr
    assert "models.W" not in done.stderr, "Django warns of each index"


def test_another_database_is_named_where_its_driver_fails_first(tmp_path: Path) -> None:
    """Under DEBUG Django formats every statement, which SQLite's driver does not survive."""
    tasks = f"from {PACKAGE} import task\n@task\ndef greet(name): ...\n"
    project = new_project(
        tmp_path,
        url=f"sqlite:///{tmp_path}/db.sqlite3",
        tasks=tasks,
        DEBUG=True,
        TASKS={"default": {"BACKEND": BACKEND}},
    )
    done = project.manage(*ENQUEUE)
    assert "ConfigurationError: the database 'default' is SQLite, but" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "command",
    [
        ENQUEUE,
        ("runworker", "--burst", "--health-addr", "127.0.0.1:0"),
        ("runscheduler", "--burst", "--health-addr", "127.0.0.1:0"),
        ("salon_jobs", "list"),
        ("salon_jobs", "stats"),
        ("salon_jobs", "limit"),
        ("salon_jobs", "doctor"),
    ],
    ids=" ".join,
)
def test_before_migrate_each_command_names_it(tmp_path: Path, empty_url: str, command: tuple[str, ...]) -> None:
    done = new_project(tmp_path, url=empty_url, tasks=TASKS).manage(*command)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("; run: python manage.py migrate")
    assert command is ENQUEUE or "WORKER.SCHEMA_MISSING: " in done.stderr.splitlines()[-1]
    assert command is ENQUEUE or "Traceback" not in done.stderr


def test_a_worker_without_tasks_says_so(tmp_path: Path, empty_url: str) -> None:
    project = new_project(tmp_path, url=empty_url)
    assert project.manage("migrate", "--verbosity", "0").returncode == 0
    for tasks in ("", TASKS):
        (tmp_path / "shop/tasks.py").write_text(tasks)
        done = project.manage("runworker", "--burst", "--health-addr", "127.0.0.1:0")
        assert done.returncode == 0, done.stderr
        assert ("No task is declared" in done.stderr) is (not tasks)


def test_a_worker_without_tasks_names_the_apps_searched_and_near_names(tmp_path: Path, empty_url: str) -> None:
    project = new_project(tmp_path, url=empty_url)
    assert project.manage("migrate", "--verbosity", "0").returncode == 0
    (tmp_path / "shop/tasks.py").unlink()
    for name in ("task", "tests", "models"):
        (tmp_path / f"shop/{name}.py").write_text(TASKS if name == "task" else "")
    done = project.manage("runworker", "--burst", "--health-addr", "127.0.0.1:0")
    assert done.returncode == 0, done.stderr
    assert "Apps searched: shop. Rename shop/task.py, or import it in tasks.py, if its tasks are meant" in done.stderr


def test_a_url_to_listen_at_with_another_scheme_is_refused(tmp_path: Path) -> None:
    done = new_project(tmp_path, SALON_JOBS={"LISTEN": "redis://127.0.0.1:6379/0"}).manage("check")
    assert done.returncode == 1
    assert "(salon_jobs.E001) SALON_JOBS['LISTEN'] must be" in done.stderr
    assert "postgresql://role:password@host:5432/database, with that scheme instead of 'redis'" in done.stderr
    assert "Traceback" not in done.stderr
