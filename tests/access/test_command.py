"""``manage.py salon_jobs doctor``, as operators, migrators and CI run it."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command

from salon_jobs.access.doctor import examination
from salon_jobs.access.doctor.catalogue import Drift
from salon_jobs.access.doctor.examination import Examination
from salon_jobs.core.errors import FixIncomplete
from tests.settings import TEST_DATABASE, url_for

Superuser = psycopg.Connection[Any]
NO_FORCE = "ALTER TABLE salon_jobs_job NO FORCE ROW LEVEL SECURITY"
FORCE = 'ALTER TABLE "public"."salon_jobs_job" FORCE ROW LEVEL SECURITY'


def doctor(*arguments: str) -> tuple[str, str]:
    """Run it; returns what it wrote to standard output and standard error."""
    out, err = StringIO(), StringIO()
    call_command("salon_jobs", "doctor", *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def is_forced(superuser: Superuser) -> bool:
    query = "SELECT relforcerowsecurity FROM pg_class WHERE relname = 'salon_jobs_job'"
    return bool(superuser.execute(query).fetchall()[0][0])


def test_every_role_reads_the_same(superuser: Superuser) -> None:
    superuser.execute(NO_FORCE)
    superuser.execute("REVOKE USAGE ON SCHEMA public FROM jobs_operator")
    for alias in ("operator", "web", "default", "owner", "migrator"):
        out, err = doctor("--database", alias)
        assert f"  fix       {FORCE};" in out
        assert "grant: schema public, role jobs_operator\n  expected  USAGE\n  found     nothing" in out
        assert out.splitlines()[-1].endswith(": 2 drifts")
        assert ("not checked: orphans" in err) is (alias != "owner")
    assert not is_forced(superuser)


def test_no_drift(superuser: Superuser) -> None:
    out, err = doctor("--fail")
    assert (out, err) == (
        f"{TEST_DATABASE}, as jobs_operator: no drift\n",
        "not checked: orphans across foreign keys: jobs_operator does not see all rows; a superuser does\n",
    )
    assert doctor("--fail", "--superuser")[1] == ""


def test_drift_is_error_with_fail(superuser: Superuser) -> None:
    superuser.execute(NO_FORCE)
    with pytest.raises(CommandError, match=r"^the database is not as declared: 1 drift$"):
        doctor("--fail")


def test_drifts_as_json(superuser: Superuser) -> None:
    superuser.execute(NO_FORCE)
    assert json.loads(doctor("--json", "--skip-orphans")[0]) == {
        "database": TEST_DATABASE,
        "role": "jobs_operator",
        "drifts": [
            {
                "kind": "row-level security",
                "where": 'table "public"."salon_jobs_job"',
                "expected": "FORCE",
                "found": "NO FORCE",
                "fix": [FORCE],
                "needs_decision": False,
                "hint": "",
            }
        ],
        "not_checked": [],
        "bound_owners": [],
    }


@pytest.mark.parametrize("answer", ["y", "n", None])
def test_fix_asks_before(superuser: Superuser, monkeypatch: pytest.MonkeyPatch, answer: str | None) -> None:
    superuser.execute(NO_FORCE)
    superuser.execute("GRANT SELECT ON salon_jobs_process TO app; ALTER TABLE salon_jobs_limit OWNER TO app")
    terminal = StringIO(f"{answer}\n")
    terminal.isatty = lambda: answer is not None  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", terminal)
    if answer == "y":
        assert "fixed: " in doctor("--fix", "--fail")[1]
        assert doctor("--fail", "--superuser")[1] == ""
    else:
        message = "nothing was fixed" if answer else r"Fix \d+ of them\? No terminal to confirm on; pass --yes"
        with pytest.raises(CommandError, match=message):
            doctor("--fix")
    assert is_forced(superuser) is (answer == "y")


def test_fix_counts_decisions_left(superuser: Superuser) -> None:
    superuser.execute(NO_FORCE)
    superuser.execute("CREATE RULE debug AS ON INSERT TO customer DO ALSO NOTIFY debug")
    try:
        assert doctor("--fix", "--yes")[1] == "fixed: 1\nleft for you to decide: 1\n"
    finally:
        superuser.execute("DROP RULE debug ON customer")


def test_migrator_fixes_its_own_objects(superuser: Superuser) -> None:
    superuser.execute(NO_FORCE)
    superuser.execute("CREATE POLICY debug ON customer USING (true)")
    assert "fixed: 2" in doctor("--fix", "--yes", "--fail", "--database", "migrator")[1]
    assert is_forced(superuser)


def test_refused_fix_changes_nothing(superuser: Superuser) -> None:
    superuser.execute(NO_FORCE)
    superuser.execute("GRANT SELECT ON salon_jobs_process TO app")
    with pytest.raises(CommandError, match="must be owner of table salon_jobs_job"):
        doctor("--fix", "--yes", "--database", "web")
    assert not is_forced(superuser)


def test_fix_that_does_not_help_is_taken_back(superuser: Superuser, monkeypatch: pytest.MonkeyPatch) -> None:
    drift = Drift(kind="policy", where="p", expected="a", found="b", fix=(NO_FORCE,))
    one_drift = Examination(database="d", role="r", drifts=(drift,))
    monkeypatch.setattr(examination, "examine", lambda *_, **__: one_drift)
    with pytest.raises(FixIncomplete, match="policy: p: expected a, found b"):
        examination.fix(superuser, using="default")
    monkeypatch.undo()
    assert is_forced(superuser)


def test_fix_waits_briefly_for_table_in_use(superuser: Superuser) -> None:
    superuser.execute(NO_FORCE)
    with psycopg.connect(url_for("worker_runtime")) as busy:
        busy.execute("SELECT count(*) FROM salon_jobs_job")
        with pytest.raises(CommandError, match="lock timeout"):
            doctor("--fix", "--yes")
    assert not is_forced(superuser)


@pytest.mark.parametrize(
    ("arguments", "url", "message"),
    [
        (("--database", "nowhere"), None, r"SETTINGS\.INVALID: DATABASES has no alias 'nowhere'"),
        (("--superuser",), None, r"SALON_JOBS\['BOOTSTRAP_URL'\] is not set"),
        (("--superuser",), "postgresql://boss:secret@127.0.0.1:1/x", r"WORKER\.NOT_READY: the server of BOOTSTRAP_URL"),
    ],
)
def test_missing_connection_is_error_in_one_line(
    settings: Any, migrated: None, arguments: tuple[str, ...], url: str | None, message: str
) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "BOOTSTRAP_URL": url}
    with pytest.raises(CommandError, match=message) as refused:
        doctor(*arguments)
    assert "secret" not in str(refused.value)


def test_doctor_before_migrate(superuser: Superuser) -> None:
    with psycopg.connect(url_for(None)) as other:
        other.execute("ALTER TABLE salon_jobs_job RENAME TO salon_jobs_job_away")
        other.commit()
        try:
            with pytest.raises(CommandError, match=r"WORKER\.SCHEMA_MISSING: .*manage.py migrate"):
                doctor()
        finally:
            other.execute("ALTER TABLE salon_jobs_job_away RENAME TO salon_jobs_job")
