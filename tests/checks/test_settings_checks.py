"""The system checks as a user meets them: with settings that are right and wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.db import connections
from psycopg import IsolationLevel

from salon_jobs import store_task
from salon_jobs.checks import check_all, check_consumers, check_database, check_producer, check_settings
from salon_jobs.checks.bounds import check_bounds
from salon_jobs.jobs import registry
from tests.interpreter import manage, run_python
from tests.tenancy.probe import ask

URL = "postgresql://app:p@127.0.0.1:1/x"
PLAIN = {"DJANGO_SETTINGS_MODULE": "tests.migrations.plain_settings", "ONE_USER_URL": "postgresql://u:p@127.0.0.1:1/x"}


@pytest.mark.process
@pytest.mark.parametrize("settings", [{}, PLAIN], ids=["demo", "plain"])
def test_right_settings(settings: dict[str, str]) -> None:
    done = manage("check", "--tag", "salon_jobs", **settings)
    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout


@pytest.mark.process
@pytest.mark.parametrize("command", ["runworker", "runscheduler"])
def test_database_without_name_is_told_in_one_line(command: str) -> None:
    done = manage(command, "--burst", **{**PLAIN, "ONE_USER_URL": "postgresql://u:p@127.0.0.1:1/"})
    assert done.returncode == 1
    assert "CommandError: SETTINGS.INVALID: settings.DATABASES is improperly configured" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.process
@pytest.mark.parametrize("first", [True, False])
def test_commands_overridden_by_another_app(tmp_path: Path, first: bool) -> None:
    commands = tmp_path / "other" / "management" / "commands"
    commands.mkdir(parents=True)
    (tmp_path / "other" / "__init__.py").touch()
    for name, module in (("migrate", "commands.migrate"), ("runworker", "base")):
        (commands / f"{name}.py").write_text(f"from django.core.management.{module} import *")
    apps = "['other', *INSTALLED_APPS]" if first else "[*INSTALLED_APPS, 'other']"
    (tmp_path / "beside.py").write_text(f"from project.settings import *\nINSTALLED_APPS = {apps}")
    done = manage(
        "check", "--tag", "salon_jobs", PYTHONPATH=str(tmp_path), DJANGO_SETTINGS_MODULE="beside", DATABASE_URL=URL
    )
    assert done.returncode == 0, done.stderr
    for warning in (
        "salon_jobs.W001) 'other' overrides the migrate command",
        "salon_jobs.W003) `python manage.py runworker` is the command of 'other'",
    ):
        assert (warning in done.stderr) is first
    assert done.stderr.count("put 'salon_jobs' before it in INSTALLED_APPS") == 2 * first


@pytest.mark.process
def test_misspelt_setting_is_told_with_suggestion(tmp_path: Path) -> None:
    (tmp_path / "misspelt.py").write_text(
        "from project.settings import *\nSALON_JOBS = {**SALON_JOBS, 'MAX_ATEMPTS': 3}"
    )
    done = manage("runworker", PYTHONPATH=str(tmp_path), DJANGO_SETTINGS_MODULE="misspelt", WORKER_DATABASE_URL=URL)
    assert done.returncode == 1
    assert "salon_jobs.E001) SALON_JOBS has an unknown key 'MAX_ATEMPTS'; did you mean 'MAX_ATTEMPTS'?" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def alias(settings: Any) -> Iterator[dict[str, Any]]:
    """Return what ``DATABASES`` says of the jobs' alias; nothing connects to it."""
    settings.SALON_JOBS = {}
    kept = connections["default"].settings_dict
    connections["default"].settings_dict = {**kept, "OPTIONS": {}}
    yield connections["default"].settings_dict
    connections["default"].settings_dict = kept


@pytest.mark.parametrize(
    ("level", "wrong"),
    [("READ_UNCOMMITTED", False), ("READ_COMMITTED", False), ("REPEATABLE_READ", True), ("SERIALIZABLE", True)],
)
def test_isolation_level(alias: dict[str, Any], level: str, wrong: bool) -> None:
    """The statements cannot work under one above READ COMMITTED."""
    alias["OPTIONS"] = {"isolation_level": IsolationLevel[level]}
    assert [error.id for error in check_settings()] == ["salon_jobs.E006"] * wrong


@pytest.mark.parametrize(
    ("host", "options", "by_default", "warned"),
    [
        ("a,b", {}, "", True),
        ("a", {"hostaddr": "10.0.0.1,10.0.0.2"}, "", True),
        ("a,b", {"target_session_attrs": "any"}, "", True),
        ("a,b", {"target_session_attrs": "read-write"}, "", False),
        ("a,b", {"target_session_attrs": "primary"}, "", False),
        ("a,b", {}, "read-write", False),
        ("a", {}, "", False),
    ],
)
def test_hosts_that_can_be_standbys(
    alias: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    options: dict[str, str],
    by_default: str,
    warned: bool,
) -> None:
    alias.update(HOST=host, OPTIONS=options)
    monkeypatch.setenv("PGTARGETSESSIONATTRS", by_default)
    assert [warning.id for warning in check_settings()] == ["salon_jobs.W004"] * warned


@pytest.mark.parametrize(
    ("pool", "concurrency", "told"),
    [
        (None, 8, ""),
        (True, 8, ""),
        ({"timeout": 5}, 8, ""),
        ({"max_size": 10}, 4, "gives at most 10 connections, and a process of a worker keeps 11"),
        ({"max_size": 11}, 4, ""),
        ({"min_size": 2}, 4, "gives at most 2 connections, and a process of a worker keeps 11"),
        ({"min_size": 2, "max_size": 40}, 8, ""),
    ],
)
def test_size_of_pool(alias: dict[str, Any], settings: Any, pool: Any, concurrency: int, told: str) -> None:
    """A worker's thread keeps its connection; in this project, some run coroutines."""
    settings.SALON_JOBS = {"CONCURRENCY": concurrency}
    alias["OPTIONS"] = {} if pool is None else {"pool": pool}
    found = [(warning.id, warning.msg) for warning in check_settings()]
    assert found == ([("salon_jobs.W006", f"DATABASES['default']['OPTIONS']['pool'] {told}")] if told else [])


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


@pytest.mark.process
@pytest.mark.parametrize("kind", ["command", "web"])
def test_outbox_without_producer(tmp_path: Path, kind: str) -> None:
    environment = project(tmp_path, OUTBOX={"THROUGHPUT": 100})
    if kind == "command":
        done = manage("runworker", "--burst", **environment)
    else:
        web = "import django.core.wsgi; django.core.wsgi.get_wsgi_application()"
        done = run_python("-c", web, environment={**os.environ, **environment})
    assert done.returncode == 1
    assert "SALON_JOBS['OUTBOX']['PRODUCER'] is not set: it is the name of this application" in done.stderr
    assert REMEDY in done.stderr


@pytest.mark.parametrize(
    ("sections", "sign"),
    [
        ({"NATS": {"CLIENT_NAME": "shop"}}, "SALON_JOBS['NATS'] is"),
        ({"SNS": {"REGION": "eu-west-1"}, **QUEUE}, "SALON_JOBS['SNS'] is"),
    ],
    ids=["nats", "sns beside azure"],
)
def test_broker_that_nobody_reads_needs_producer(settings: Any, sections: dict[str, Any], sign: str) -> None:
    settings.SALON_JOBS = sections
    [error] = check_producer()
    assert (error.id, error.msg) == ("salon_jobs.E052", f"SALON_JOBS['OUTBOX']['PRODUCER'] is not set, and {sign}")
    assert REMEDY in (error.hint or "")
    assert error in check_all()


@pytest.mark.process
@pytest.mark.parametrize("command", [("relay_outbox", "--burst"), ("runworker", "--with-relay", "--burst")])
def test_relay_needs_producer(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = manage(*command, "--health-addr", "127.0.0.1:0", **project(tmp_path))
    assert done.returncode == 1
    assert "CommandError: SETTINGS.INVALID: SALON_JOBS['OUTBOX']['PRODUCER'] is not set: it is" in done.stderr
    assert REMEDY in done.stderr


@pytest.mark.parametrize(
    "sections",
    [{}, QUEUE, {"OUTBOX": {"SOURCES": {"a": "b.C"}}}, {"OUTBOX": {"PRODUCER": "shop"}}],
    ids=["a plain queue", "a consumer", "a source of its own", "a producer"],
)
def test_producer_is_not_needed(settings: Any, sections: dict[str, Any]) -> None:
    settings.SALON_JOBS = sections
    assert check_producer() == []


# Bounds that do not fit together

NATS = {"NATS": {"SERVER": "nats://127.0.0.1:4222"}}


@pytest.mark.parametrize(
    ("given", "check", "said"),
    [
        ({"POLL_INTERVAL": 5.1}, "W002", "more than 5 s"),
        ({"POLL_INTERVAL": 5}, None, ""),
        ({"NATS": {"TIMEOUT": 26}}, "W083", "waits 25 s for answers"),
        ({"NATS": {"TIMEOUT": 3}, "SHUTDOWN_GRACE": 4}, "W083", "waits 2 s for answers"),
        ({**NATS, "SNS": {"REGION": "eu-west-1"}, "AZURE": {"VISIBILITY_TIMEOUT": 30}}, None, ""),
    ],
)
def test_settings_out_of_bounds(settings: Any, given: dict[str, Any], check: str | None, said: str) -> None:
    settings.SALON_JOBS = given
    found = list(check_bounds())
    assert [each.id for each in found] == ([] if check is None else [f"salon_jobs.{check}"])
    for each in found:
        assert said in each.msg
        assert each.hint


@pytest.mark.parametrize("accepted", [65_536, None])
def test_consumer_accepts_less_than_broker_delivers(settings: Any, accepted: int | None) -> None:
    consumers = {"c": {"SOURCE": "rn::nats:::orders", "TASKS": {"e": "test-system"}}}
    settings.SALON_JOBS = {"CONSUMERS": consumers, **NATS, **({"MAX_PAYLOAD": accepted} if accepted else {})}
    found = [(each.id, "consumer 'c' delivers up to 1,048,576" in each.msg) for each in check_consumers()]
    assert found == ([("salon_jobs.W081", True)] if accepted else [])


@pytest.mark.parametrize(
    ("timeout", "host", "warns"),
    [
        (15, "a", True),
        ("15", "a", True),
        (5, "a,b,c", True),
        (7, "a,b", False),
        (None, "a", False),
        ("", "a", False),
        ("soon", "a", False),
    ],
)
def test_connect_timeout(alias: dict[str, Any], timeout: object, host: str, warns: bool) -> None:
    """Connecting should not take longer than a process may be silent."""
    alias.update(HOST=host, OPTIONS={"connect_timeout": timeout})
    assert [each.id for each in check_bounds()] == (["salon_jobs.W084"] if warns else [])


@pytest.fixture
def long_task() -> Iterator[None]:
    @store_task(name="test-long", timeout=timedelta(minutes=90))
    def run(store_id: UUID) -> None: ...

    yield
    registry.unregister("test-long")


@pytest.mark.usefixtures("database", "long_task")
@pytest.mark.parametrize("setting", ["idle_in_transaction_session_timeout", "transaction_timeout"])
def test_server_timeout_shorter_than_task(setting: str) -> None:
    assert check_database(databases=["default"]) == []
    if not ask("SELECT count(*) FROM pg_settings WHERE name = %s", setting):  # transaction_timeout came with 17
        return
    ask(f"SELECT set_config('{setting}', '1h', false)")
    try:
        [warning] = check_database(databases=["default"])
    finally:
        connections["default"].close()
    assert warning.id == "salon_jobs.W022"
    assert f"'test-long' may run for 5400 s in one transaction, and {setting} is 3600 s" in warning.msg
