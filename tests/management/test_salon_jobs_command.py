"""Runs ``manage.py salon_jobs`` as operators do."""

from __future__ import annotations

import json
import os
import re
import shlex
import tempfile
from contextlib import nullcontext
from datetime import timedelta
from io import StringIO
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import CommandParser

from salon_jobs import task
from salon_jobs.conf.store_key import store_key
from salon_jobs.core.metrics import BUCKETS
from salon_jobs.jobs import registry
from salon_jobs.management.arguments import os_user
from salon_jobs.management.commands.relay_outbox import Command
from tests import tasks
from tests.interpreter import start_python
from tests.management.operator import add, minute, run
from tests.support import change, in_state, leases_of, seen, selected
from tests.waiting import LIMIT_S


def test_help_lists_subcommands() -> None:
    out = StringIO()
    call_command("salon_jobs", stdout=out)
    assert "Inspect and change jobs, messages, limits and cron entries of all stores" in out.getvalue()
    assert "SUBCOMMAND" in out.getvalue()
    assert all(f"    {service} " in out.getvalue() for service in ("worker", "scheduler", "relay", "consumer"))


def failed(days: int, number: int = 1) -> None:
    row = in_state("'failed'", task="'ping'", finished_at="now() - make_interval(days => %s)")
    change(f"INSERT INTO salon_jobs_job {selected(row)} FROM generate_series(1, %s)", days, number)


def count() -> int:
    return int(seen("SELECT count(*) FROM salon_jobs_job")[0][0])


def test_prune_counts_asks_and_deletes(database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    failed(91, 1001)
    failed(89)
    assert run("prune", "--dry-run") == ("would be deleted: 0 succeeded, 0 cancelled, 1,001 failed\n", "")
    monkeypatch.setattr("sys.stdin", StringIO("y\n"))
    with pytest.raises(CommandError, match=r"Delete 1,001 jobs .*pass --yes"):
        run("prune")
    assert count() == 1002
    out, _ = run("prune", "--yes", "--json")
    assert json.loads(out) == {"deleted": {"succeeded": 0, "cancelled": 0, "failed": 1001, "errors": 0}}
    assert count() == 1


@pytest.mark.parametrize(("answer", "left"), [("y", 0), ("n", 1), ("", 1)])
def test_prune_needs_confirmation(database: None, monkeypatch: pytest.MonkeyPatch, answer: str, left: int) -> None:
    failed(91)
    terminal = StringIO(f"{answer}\n")
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", terminal)
    with nullcontext() if left == 0 else pytest.raises(CommandError, match="nothing was deleted"):
        assert run("prune")[1].startswith("Delete 1 job (")
    assert count() == left


def test_prune_by_age_and_state(database: None, settings: Any) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "RETAIN_FAILED": None}
    failed(3)
    with pytest.raises(CommandError, match=r"keep these jobs forever.*--older-than"):
        run("prune", "--state", "failed", "--yes")
    run("prune", "--state", "cancelled", "--older-than", "1s", "--yes")
    run("prune", "--older-than", "4d", "--yes")
    assert count() == 1
    run("prune", "--state", "failed", "--older-than", "71h", "--yes")
    assert count() == 0


def test_web_role_is_refused(database: None, settings: Any) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "OPERATOR_DATABASE": None, "DATABASE": "web"}
    with pytest.raises(CommandError, match=r"WORKER.FORBIDDEN_ROLE: .*'app' is not 'worker_runtime'"):
        run("prune", "--yes")


def test_tasks_lists_what_is_declared() -> None:
    out, _ = run("tasks")
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    # There is a column of timeouts if any task has one, such as those of other tests.
    assert {"queue", "attempts", "store", "declared"} <= {*lines["task"]}
    assert lines["test-store"][:2] == ["default", "3"]
    assert lines["test-store"][-2:] == ["yes", "tests.tasks.in_store"]
    assert lines["test-flow"][-2:] == ["-", "tests.tasks.in_flow"]
    listed = {each["task"]: each for each in json.loads(run("tasks", "--json")[0])}
    assert list(listed) == sorted(listed)
    assert listed["test-flow"] == {
        "task": "test-flow",
        "declared": "tests.tasks.in_flow",
        "is_store_task": False,
        "is_async": False,
        "queue": "default",
        "priority": 0,
        "max_attempts": 1,
        "timeout_s": None,
        "keep_result_s": 3600.0,
        "at_most_once": False,
    }


def test_stats_sums_runs_in_period(database: None) -> None:
    minute("ping", 1, succeeded=9, retried=1, failed=1)
    minute("ping", 30, succeeded=1000)
    minute("ping", 70, succeeded=1, rescued=1)
    minute("sweep", 5, cancelled=11)
    out, _ = run("stats")
    assert out.splitlines()[0].split()[:8] == ["task", "runs", "succeeded", "retried", "failed", "mean", "p50", "p95"]
    assert out.splitlines()[1].split()[:7] == ["ping", "22", "1,009", "1", "1", "191", "ms"]
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["ping", "sweep"]
    [ping] = json.loads(run("stats", "--last", "2h", "--task", "ping", "--json")[0])
    assert (ping["runs"], ping["succeeded"], ping["rescued"]) == (33, 1010, 1)
    assert ping["duration_s"]["mean"] == pytest.approx(6.3 / 33)
    assert ping["duration_s"]["p50"] == pytest.approx(0.01, rel=0.42)
    assert ping["duration_s"]["p95"] == pytest.approx(2, rel=0.42)
    assert ping["wait_s"] == pytest.approx({"mean": 60, "p50": 60, "p95": 60}, rel=0.42)


def test_stats_without_timed_runs(database: None) -> None:
    out, note = run("stats")
    assert not out
    assert re.fullmatch(
        r"no run is counted in this period\ncounted up to \d\d:\d\d:\d\d \w+: workers add their runs every 5 s\n", note
    )
    none = [0] * BUCKETS
    row = "(now(), 'ping', 'default', 0, 0, 0, 0, 0, 0, 1, 0, %s, 0, %s)"
    change(f"INSERT INTO salon_jobs_task_minute VALUES {row}", none, none)
    assert run("stats")[0].splitlines()[1].split() == ["ping", "0", "0", "0", "0", *("–" * 6)]
    assert "\nno run is counted in this period\n" in run("stats", "--task", "other")[1]


def test_cancel_by_ids_or_filter(stores: list[UUID], process_id: int) -> None:
    first, ended = add(), add(state="cancelled")
    running, other = (add(task="test-store", store_id=store) for store in stores[:2])
    assert leases_of(process_id).claim_due(["test-store"], 1)
    out, _ = run("cancel", str(first), str(ended), "999", "--yes")
    assert out.splitlines()[-1] == "cancelled or asked to end: 1 of 3"
    with pytest.raises(CommandError, match=r"Cancel 1 job\? No terminal to confirm on; pass --yes"):
        run("cancel", "--task", "test-store", "--store", str(stores[1]))
    assert f"{running}: still running" in run("cancel", "--task", "test-store", "--yes")[0]
    states = dict(seen("SELECT id, state FROM salon_jobs_job WHERE cancel_requested_at IS NULL"))
    assert states == {first: "cancelled", other: "cancelled", ended: "cancelled"}
    for arguments in ((), ("1", "--task", "test-store")):
        with pytest.raises(CommandError, match="name the jobs by IDs, or by --task"):
            run("cancel", *arguments, "--yes")


def test_job_named_twice_counts_once(database: None) -> None:
    """By its number and by its public ID; one that is named by the latter alone is another."""
    first, second = uuid4(), uuid4()
    number = add(public_id=first)
    add(public_id=second)
    out, _ = run("cancel", str(number), str(first), str(first), str(second), "--yes")
    assert out == "cancelled or asked to end: 2 of 2\n"


def test_pause_and_resume_scope(stores: list[UUID]) -> None:
    with pytest.raises(CommandError, match=r"Unknown queue 'unheard-of'; nothing was paused\. Pass --yes to pause it"):
        run("pause", "--queue", "unheard-of")
    assert run("pause", "--queue", "unheard-of", "--yes")[0] == "paused: queue unheard-of\n"
    tasks.in_store.using(queue="bulk").enqueue(store_id=stores[0])
    assert run("pause", "--queue", "bulk")[0] == "paused: queue bulk\n", "jobs wait there"
    change("DELETE FROM salon_jobs_limit WHERE name = 'bulk'")
    assert json.loads(run("pause", "--store", str(stores[0]), "--json")[0]) == {"paused": {"store": str(stores[0])}}
    assert run("resume", "--queue", "unheard-of")[0] == "resumed: queue unheard-of\n"
    assert seen("SELECT kind, name, paused FROM salon_jobs_limit ORDER BY kind") == [
        ("queue", "unheard-of", False),
        ("store", str(stores[0]), True),
    ]
    assert run("pause", "--store", str(stores[0]))[0] == f"store {stores[0]}: it is paused already\n"
    assert run("resume", "--queue", "unheard-off")[0] == "queue unheard-off: it is not paused\n"
    assert json.loads(run("resume", "--store", str(stores[1]), "--json")[0]) == {
        "resumed": {"store": str(stores[1])},
        "changed": False,
        "detail": "it is not paused",
    }
    assert seen("SELECT count(*) FROM salon_jobs_limit") == [(2,)], "nothing is added for what was not paused"
    with pytest.raises(CommandError, match="one of the arguments --queue --task --store is required"):
        run("pause")


def test_retry_by_ids_or_filter(stores: list[UUID]) -> None:
    first, second = add(state="failed"), add(state="failed")
    waiting, cancelled = add(), add(state="cancelled")
    mail, other = (add(task="test-store", state="failed", queue="mail", store_id=store) for store in stores[:2])
    out, _ = run("retry", str(first), str(waiting), str(cancelled), "999", "--yes")
    assert out.splitlines() == [
        f"{waiting}: it is queued; only failed and cancelled jobs can be retried",
        "999: there is no such job, or you may not see it",
        "queued again: 2 of 4",
    ]
    with pytest.raises(CommandError, match=r"Retry 1 job\? No terminal to confirm on; pass --yes"):
        run("retry", "--queue", "mail", "--store", str(stores[0]))
    out, _ = run("retry", "--task", "test-store", "--store", str(stores[0]), "--yes", "--json")
    assert json.loads(out) == [{"id": mail, "changed": True, "detail": ""}]
    assert {row[0] for row in seen("SELECT id FROM salon_jobs_job WHERE state = 'failed'")} == {second, other}
    run("retry", str(second), "--at", "12h", "--yes")
    [(ahead,)] = seen("SELECT run_at - now() FROM salon_jobs_job WHERE id = %s", second)
    assert timedelta(hours=11.9) < ahead < timedelta(hours=12.1)
    with pytest.raises(CommandError, match="name the jobs by IDs, or by --task"):
        run("retry", "--yes")
    with pytest.raises(CommandError, match="write 12h for in 12"):
        run("retry", "1", "--at", "x")


def test_limit_sets_and_lists_rules(stores: list[UUID], settings: Any) -> None:
    assert run("limit") == ("", "no limit is set or declared\n")
    settings.SALON_JOBS = {**settings.SALON_JOBS, "STORE_CONCURRENCY": 8}

    @task(name="test-limited", max_concurrency=4, concurrency_key="{card}")
    def limited(card: str) -> None: ...

    try:
        run("pause", "--store", str(stores[0]))
        run("limit", "--queue", "mail", "--rate", "150/m")
        run("limit", "--task", "test-limited", "--key", "a:b", "--lift")
        out, _ = run("limit", "--task", "test-limited", "--max-concurrency", "1000")
        [(at,)] = seen("SELECT to_char(paused_at, 'YYYY-MM-DD HH24:MI TZ') FROM salon_jobs_limit WHERE paused")
        assert [line.split() for line in out.splitlines()] == [
            ["limit", "paused", "at", "once", "rate", "declared", "why"],
            ["key", "test-limited:*", "-", "1", "-", "1", "-"],
            ["key", "test-limited:a:b", "-", "lifted", "-", "1", "-"],
            ["queue", "mail", "-", "-", "150/m", "-", "-"],
            ["store", "*", "-", "8", "-", "8", "-"],
            ["store", str(stores[0]), "yes", "8", "-", "8", *f"Salon 0; paused by {os_user()} since {at}".split()],
            ["task", "test-limited", "-", "1,000", "-", "4", "-"],
        ]
        run("limit", "--queue", "mail", "--max-concurrency", "3")
        assert seen("SELECT max_concurrency, rate FROM salon_jobs_limit WHERE kind = 'queue'") == [(3, 2.5)]
        run("limit", "--queue", "mail", "--no-rate")
        assert seen("SELECT max_concurrency, rate FROM salon_jobs_limit WHERE kind = 'queue'") == [(3, None)]
        run("limit", "--queue", "mail", "--as-declared")
        rules = json.loads(run("limit", "--task", "test-limited", "--as-declared", "--json")[0])
        paused = {"paused": False, "paused_by": "", "paused_at": None}
        rule = {"kind": "task", "name": "test-limited", "max_concurrency": 4, "rate": None, "declared": 4}
        assert rules[-1] == {**rule, **paused, "lifted": False}
        listed, _ = run("limit", "--queue", "nothing-declared", "--lift")
        [line] = [each for each in listed.splitlines() if "nothing-declared" in each]
        assert line.split() == ["queue", "nothing-declared", "-", "lifted", "-", "-"]
    finally:
        registry.unregister("test-limited")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-concurrency", "4"], "nothing to limit: pass --queue, --task"),
        (["--task", "a"], "nothing to set: pass --max-concurrency, --lift, --as-declared, --rate, --no-rate or"),
        (["--task", "a", "--queue", "b", "--lift"], "not allowed with argument"),
        (["--task", "a", "--lift", "--max-concurrency", "4"], "not allowed with argument"),
        (["--queue", "a", "--key", "k", "--lift"], "pass key together with task"),
        (["--queue", "a", "--max-concurrency", "-1"], "max_concurrency must be a whole number from 0"),
        (["--queue", "a", "--rate", "2", "--no-rate"], "not allowed with argument"),
        (["--queue", "a", "--rate", "nan"], "rate must be a number of jobs per second"),
        (["--store", "x y", "--lift"], f"argument --store: must be {re.escape(store_key().description)}, not 'x y'"),
    ],
)
def test_invalid_limit_is_refused(database: None, arguments: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        run("limit", *arguments)
    assert seen("SELECT count(*) FROM salon_jobs_limit") == [(0,)]


class InterruptedAfter(StringIO):
    """Is a standard error at which somebody presses Ctrl-C when it says so."""

    words = "1,000 of 1,001"

    def write(self, text: str) -> int:
        if self.words in text:
            self.words = "\0"
            raise KeyboardInterrupt
        return super().write(text)


def test_interrupted_retry_reports_progress(database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    failed(0, 1001)
    monkeypatch.setattr("salon_jobs.management.output._PROGRESS_EVERY_S", 0.0)
    err = InterruptedAfter()
    with pytest.raises(CommandError, match="interrupted; changes made before that remain") as raised:
        call_command("salon_jobs", "retry", "--task", "ping", "--yes", stderr=err)
    assert raised.value.returncode == 130
    assert err.getvalue() == "stopped after 1,000 of 1,001\n"
    assert seen("SELECT state, count(*) FROM salon_jobs_job GROUP BY 1 ORDER BY 1") == [("failed", 1), ("queued", 1000)]


def test_interrupted_prune_reports_deleted_jobs(database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    failed(91, 1001)
    monkeypatch.setattr("salon_jobs.management.output._PROGRESS_EVERY_S", 0.0)
    out = StringIO()
    with pytest.raises(CommandError, match="interrupted"):
        call_command("salon_jobs", "prune", "--yes", stdout=out, stderr=InterruptedAfter())
    assert "deleted: 0 succeeded, 0 cancelled, 1,000 failed" in out.getvalue()


@pytest.mark.process
@pytest.mark.parametrize("disk_full", [True, False])
def test_full_disk_fails_and_closed_pipe_ends(database: None, disk_full: bool) -> None:
    failed(0)
    readers, out = (None, os.open("/dev/full", os.O_WRONLY)) if disk_full else os.pipe()
    if readers is not None:
        os.close(readers)
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings"}
    with tempfile.TemporaryFile("w+") as errors:
        words = ("manage.py", "salon_jobs", "list")
        process = start_python(*words, environment=environment, stdout=out, stderr=errors.fileno())
        os.close(out)
        status = process.wait(LIMIT_S)
        errors.seek(0)
        text = errors.read()
    if disk_full:
        assert status not in (0, 141)
        assert "CommandError: WORKER.NOT_READY: [Errno 28] No space left on device" in text
    else:
        assert (status, text) == (141, "")


@pytest.mark.parametrize(
    ("command", "note"),
    [
        ("list --task pign", "--task 'pign': no task of this release has that name; did you mean 'ping'?"),
        ("stats --task ping --task xyz", "--task 'xyz': no task of this release has that name\n"),
        ("pause --queue defualt --yes", "--queue 'defualt': no task of this release names that queue; did you mean"),
    ],
)
def test_unknown_name_gets_a_note(database: None, command: str, note: str) -> None:
    assert note in run(*command.split())[1]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("list --since 999999w", "--since: '999999w' is not a time"),
        ("stats --last 999999w", "--last: '999999w' is not a duration; .* 36500d at most"),
        ("list --limit 99999999999999999999", "--limit: must be 1 or more, and 2,147,483,647 at most"),
        *(
            (f"prune --older-than='{wrong}'", "--older-than")
            for wrong in ("7", "d", "0d", "-1d", "1.5h", "7 days", "9999999d", "٣d", "7x")
        ),
    ],
)
def test_value_out_of_range_names_its_option(command: str, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        run(*shlex.split(command))


def level(given: str) -> object:
    parser = CommandParser(called_from_command_line=False)
    Command().add_arguments(parser)
    return parser.parse_args(["--log-level", given]).log_level


@pytest.mark.parametrize("given", ["warn", "WARN", "warning", "WARNING"])
def test_log_level_spellings(given: str) -> None:
    assert level(given) == "WARNING"


def test_unknown_log_level_is_refused() -> None:
    with pytest.raises(CommandError, match="--log-level: must be debug, info, warning, error or critical, not 'loud'"):
        level("loud")
