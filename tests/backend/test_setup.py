"""What a project hears when the backend cannot work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import django
import pytest
from django.dispatch import Signal

from salon_jobs.backend import SalonJobsBackend
from salon_jobs.checks import check_task_signals
from tests.backend.django_tasks_api import signals as framework_signals
from tests.e2e.worker_process import inherited
from tests.interpreter import run_python

SETTINGS = """
SECRET_KEY = "x"
USE_TZ = True
INSTALLED_APPS = {apps}
DATABASES = {{"default": {{"ENGINE": "django.db.backends.{engine}", "NAME": "x", "HOST": "127.0.0.1", "PORT": 1}}}}
TASKS = {{"default": {{"BACKEND": "salon_jobs.backend.SalonJobsBackend"}}}}
"""
PACKAGE = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
INSTALLED = ["pgtrigger", "salon_jobs"]


def python(
    tmp_path: Path, code: str, *, apps: list[str], engine: str = "postgresql"
) -> subprocess.CompletedProcess[str]:
    """Run Python in a project with these settings."""
    (tmp_path / "a_project.py").write_text(SETTINGS.format(apps=apps, engine=engine))
    environment = {**inherited(), "DJANGO_SETTINGS_MODULE": "a_project", "PYTHONPATH": str(tmp_path)}
    return run_python("-c", f"import django\n{code}", environment=environment)


def test_missing_app_is_named(tmp_path: Path) -> None:
    code = f"""
from django.core.management import call_command
django.setup()
import {PACKAGE}
try:
    call_command("check")
except SystemExit as exit:
    print(exit)
except Exception as error:
    print(error)
@{PACKAGE}.task
def add(): ...
"""
    done = python(tmp_path, code, apps=[PACKAGE] if PACKAGE == "django_tasks" else [])
    assert "(salon_jobs.E070) the backend of TASKS['default'] needs the app salon_jobs" in done.stdout
    assert "HINT: add 'salon_jobs' and 'pgtrigger' to INSTALLED_APPS" in done.stdout
    assert done.stderr.splitlines()[-1].endswith(
        "the backend of TASKS['default'] needs the app salon_jobs, which is not installed: "
        "add 'salon_jobs' and 'pgtrigger' to INSTALLED_APPS"
    )


def test_crontab_where_another_backend_has_its_task(tmp_path: Path) -> None:
    """As in the settings of tests: every command runs, and ``check`` names the entry."""
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "__init__.py").touch()
    (shop / "tasks.py").write_text(f"from {PACKAGE} import task\n@task\ndef tidy(): ...\n")
    (shop / "crontab.py").write_text(
        "from salon_jobs import cron\nfrom shop.tasks import tidy\ncron('0 3 * * *', tidy)\n"
    )
    code = f"""
from django.conf import settings
settings.TASKS["default"]["BACKEND"] = "{PACKAGE}.backends.immediate.ImmediateBackend"
django.setup()
from django.core.management import call_command
call_command("check", "--tag", "salon_jobs")
"""
    done = python(tmp_path, code, apps=[*INSTALLED, "shop"])
    assert done.returncode == 0, done.stderr
    assert "(salon_jobs.W072) cron entries that start nothing" in done.stderr
    assert "'shop.tasks.tidy' (of ImmediateBackend)" in done.stderr


def test_receivers_of_the_backport_are_named(tmp_path: Path) -> None:
    """Where Django has tasks of its own, nothing sends the backport's signals; on 5.2 it is the one that is served."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "tasks.py").write_text("""
from django.dispatch import receiver
from django_tasks import signals, task

@task
def tidy(): ...

@receiver(signals.task_finished)
def tell(**_): ...

class Told:
    def __call__(self, **_): ...
    def told(self, **_): ...

told = Told()
signals.task_enqueued.connect(told)
signals.task_started.connect(told.told)
signals.task_started.connect(lambda **_: None)  # gone at once
signals.task_finished.connect(lambda **_: None, weak=False)
""")
    code = """
from django.core.management import call_command
django.setup()
call_command("check", "--tag", "salon_jobs")
"""
    done = python(tmp_path, code, apps=["django_tasks", *INSTALLED, "shop"])
    assert done.returncode == 0, done.stderr
    if django.VERSION < (6, 0):
        assert "salon_jobs.W073" not in done.stderr
        return
    assert (
        "(salon_jobs.W073) receivers of django_tasks.signals that are never called, since this version of Django has"
        " tasks of its own: shop.tasks.<lambda>, shop.tasks.Told, shop.tasks.Told.told, shop.tasks.tell\n"
    ) in done.stderr
    assert "connect them to the signals of django.tasks.signals" in done.stderr


def test_unheard_receivers_beside_other_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a newer Django, whose own signals are not the backport's."""
    backport = ModuleType("django_tasks.signals")
    for name in ("task_enqueued", "task_started", "task_finished"):
        setattr(backport, name, Signal())
    monkeypatch.setitem(sys.modules, "django_tasks.signals", backport)
    assert check_task_signals() == []
    backport.task_finished.connect(test_backend_is_djangos)
    [warning] = check_task_signals()
    assert (warning.id, f"{__name__}.test_backend_is_djangos" in warning.msg) == ("salon_jobs.W073", True)
    monkeypatch.setitem(sys.modules, "django_tasks.signals", framework_signals)
    assert check_task_signals() == [], "those that are sent"


def test_check_names_other_database(tmp_path: Path) -> None:
    code = f"django.setup()\nfrom {PACKAGE} import task_backends\nprint(*task_backends['default'].check())"
    done = python(tmp_path, code, apps=INSTALLED, engine="sqlite3")
    assert done.returncode == 0, done.stderr
    assert "(salon_jobs.E071) the jobs of TASKS['default'] are kept in the database 'default'" in done.stdout
    assert "HINT: set SALON_JOBS['DATABASE'] to an alias" in done.stdout


def test_missing_backport_is_named(tmp_path: Path) -> None:
    code = "import sys\nsys.modules['django_tasks'] = None\ndjango.setup()\nimport salon_jobs.backend\nprint('there')"
    done = python(tmp_path, code, apps=INSTALLED)
    if django.VERSION >= (6, 0):
        assert (done.returncode, done.stdout) == (0, "there\n"), done.stderr
    else:
        assert done.returncode == 1
        assert "ImproperlyConfigured: SalonJobsBackend needs Django 6.0 or newer" in done.stderr
        assert "pip install 'salon-jobs[django-tasks]'" in done.stderr


def test_subclass_is_checked_without_connection(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from salon_jobs.backend import SalonJobsBackend\nclass Backend(SalonJobsBackend):\n    pass\n"
    )
    code = f"""
from django.conf import settings
settings.TASKS["default"]["BACKEND"] = "own.Backend"
django.setup()
import sys
assert "salon_jobs.backend.handlers" in sys.modules
from {PACKAGE} import task_backends
print(task_backends["default"].check())
"""
    done = python(tmp_path, code, apps=INSTALLED)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_backend_is_djangos() -> None:
    from salon_jobs.backend.framework import BaseTaskBackend

    assert issubclass(SalonJobsBackend, BaseTaskBackend)
