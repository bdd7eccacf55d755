"""Starts on a database that is not as declared: processes warn, refuse or do not check, as ON_DRIFT says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.core.checks import run_checks
from django.db import connections

from salon_jobs.checks import check_database
from tests.databases import spare_database
from tests.interpreter import manage
from tests.settings import TEST_DATABASE
from tests.tenancy.web import serve_process

pytestmark = pytest.mark.process
Superuser = psycopg.Connection[Any]
NO_FORCE = "ALTER TABLE salon_jobs_job NO FORCE ROW LEVEL SECURITY"
BURST = ("runworker", "--burst", "--health-addr", "127.0.0.1:0")
FIRE = ("runscheduler", "--burst", "--at", "2026-01-01T00:00:00Z")


@pytest.fixture
def on_drift(tmp_path: Path) -> Any:
    """Return the environment of a process with that setting."""

    def environment(choice: str) -> dict[str, str]:
        text = f"from project.settings import *\nSALON_JOBS = {{**SALON_JOBS, 'ON_DRIFT': {choice!r}}}\n"
        (tmp_path / "drifting.py").write_text(text)
        return {"PYTHONPATH": str(tmp_path), "DJANGO_SETTINGS_MODULE": "drifting"}

    return environment


@pytest.mark.parametrize(
    ("command", "choice"), [(BURST, "warn"), (BURST, "refuse"), (BURST, "ignore"), (FIRE, "refuse")], ids=str
)
def test_start_of_worker_and_scheduler(
    superuser: Superuser, on_drift: Any, command: tuple[str, ...], choice: str
) -> None:
    superuser.execute(NO_FORCE)
    done = manage(*command, **on_drift(choice))
    output = done.stdout + done.stderr
    assert (done.returncode != 0) is (choice == "refuse"), output
    assert ("catalogue_drift" in output) is (choice == "warn")
    assert ("CommandError: DATABASE.DRIFT: " in output) is (choice == "refuse")
    assert ("expected FORCE, found NO FORCE; run: python manage.py salon_jobs doctor" in output) is (choice != "ignore")
    assert "Traceback" not in output


def test_start_without_drift(database: None, on_drift: Any) -> None:
    done = manage(*BURST, **on_drift("refuse"))
    assert done.returncode == 0, done.stderr
    assert "drift" not in done.stdout + done.stderr


@pytest.mark.parametrize("choice", ["warn", "refuse", pytest.param("ignore", marks=pytest.mark.slow)])
def test_start_of_web_process(superuser: Superuser, on_drift: Any, choice: str) -> None:
    superuser.execute("CREATE POLICY debug ON salon_jobs_job USING (true)")
    done = serve_process(**on_drift(choice))
    assert ("served" in done.stdout) is (choice != "refuse"), done.stderr
    assert ("CatalogueDrift" in done.stderr) is (choice == "refuse")
    assert ("policy debug of table" in done.stdout + done.stderr) is (choice != "ignore")


@pytest.mark.parametrize(("choice", "check_id"), [("warn", "W020"), ("refuse", "E020"), ("ignore", None)])
def test_check_reports_drifts(superuser: Superuser, settings: Any, choice: str, check_id: str | None) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "ON_DRIFT": choice}
    assert check_database(databases=["default"]) == []
    others = ", ".join(f"salon_jobs_{name}" for name in ("process", "limit", "cron_tick", "fan_out"))
    superuser.execute(f"CREATE POLICY debug ON salon_jobs_job USING (true); {NO_FORCE}".encode())
    superuser.execute(f"GRANT SELECT ON {others} TO app".encode())
    found = check_database(databases=["default"])
    if check_id is None:
        assert found == []
        return
    [message] = found
    assert message.id == f"salon_jobs.{check_id}"
    assert message.msg.startswith("the database is not as declared:\n    ")
    assert "and 1 more" in message.msg
    assert "salon_jobs doctor lists each difference with the statements that fix it" in (message.hint or "")
    assert message in run_checks(databases=["default"])


def test_check_by_another_alias_of_the_database(superuser: Superuser, monkeypatch: pytest.MonkeyPatch) -> None:
    """One past a pooler leads there as well; one to another server does not."""
    superuser.execute(NO_FORCE)
    monkeypatch.setitem(connections["web"].settings_dict, "HOST", "localhost")
    assert [each.id for each in check_database(databases=["web"])] == ["salon_jobs.W020"]
    with spare_database(copied=False) as name:
        monkeypatch.setitem(connections["web"].settings_dict, "NAME", name)
        assert check_database(databases=["web"]) == []


def test_check_without_database(database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    connections["default"].close()
    monkeypatch.setitem(connections["default"].settings_dict, "PORT", 1)
    for alias in ("default", "web"):
        assert [each.id for each in check_database(databases=[alias])] == ["salon_jobs.W021"]
    assert check_database() == []


@pytest.mark.parametrize("command", [BURST, FIRE, None], ids=["worker", "scheduler", "web"])
def test_dangerous_setting_is_refused(superuser: Superuser, on_drift: Any, command: tuple[str, ...] | None) -> None:
    """No job can run under it, whatever ON_DRIFT says."""
    role = "app" if command is None else "worker_runtime"
    superuser.execute(f"ALTER ROLE {role} IN DATABASE {TEST_DATABASE} SET row_security = off".encode())
    done = serve_process(**on_drift("ignore")) if command is None else manage(*command, **on_drift("ignore"))
    output = done.stdout + done.stderr
    assert done.returncode != 0
    assert (
        "DangerousSetting" if command is None else "DATABASE.SETTING: sessions start with row_security = off"
    ) in output
    assert "served" not in output
