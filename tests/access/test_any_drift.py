"""Drops, adds and alters objects of each kind at random: the doctor finds each, and nothing before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import psycopg
import pytest
from django.apps import apps
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from salon_jobs.access.doctor.catalogue import Catalogue
from salon_jobs.access.doctor.declaration import declare
from salon_jobs.access.doctor.examination import examine
from salon_jobs.access.job_tables import TABLES
from tests.interpreter import succeed
from tests.settings import url_for

Superuser = psycopg.Connection[Any]
Draw: TypeAlias = Callable[[list[Any]], Any]
MUTE: Final = "CREATE FUNCTION mute() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
# What shadows the server's own operators and casts: made first, as whoever gets rows past a condition would.
SHADOWS: Final = "; ".join(
    (
        "CREATE SCHEMA elsewhere",
        *(
            f"CREATE FUNCTION elsewhere.always({kind}, {kind}) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT true';"
            f" CREATE OPERATOR elsewhere.= (LEFTARG = {kind}, RIGHTARG = {kind}, FUNCTION = elsewhere.always)"
            for kind in ("text", "uuid")
        ),
        "CREATE FUNCTION elsewhere.uuid(text) RETURNS uuid IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN $1; END'",
        "CREATE CAST (text AS uuid) WITH FUNCTION elsewhere.uuid(text)",
    )
)
SHADOWED: Final = "regexp_replace(shown, '::text = ', '::text OPERATOR(elsewhere.=) ')"
NEGATED: Final = "replace(replace(shown, ' = ', ' <> '), ' >= ', ' > ')"


def another_check(definition: str) -> str:
    return (
        "SELECT format('ALTER TABLE %1$s DROP CONSTRAINT %2$I; ALTER TABLE %1$s ADD CONSTRAINT %2$I %3$s',"
        f" conrelid::regclass, conname, {definition}) FROM (SELECT *, pg_get_constraintdef(oid) AS shown"
        " FROM pg_constraint) AS c WHERE conrelid = ANY ($1::text[]::regclass[]) AND contype = 'c'"
        f" AND {definition} <> shown"
    )


def another_index(definition: str) -> str:
    return (
        f"SELECT format('DROP INDEX %s; %s', indexrelid::regclass, {definition})"
        " FROM (SELECT *, pg_get_indexdef(indexrelid) AS shown FROM pg_index) AS i"
        " JOIN pg_class c ON c.oid = indexrelid WHERE indrelid = ANY ($1::text[]::regclass[])"
        f" AND c.relname = ANY ($2::text[]) AND {definition} <> shown"
        " AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)"
    )


def another_policy(condition: str) -> str:
    return (
        f"SELECT format('ALTER POLICY %I ON %s USING (%s)', polname, polrelid::regclass, {condition})"
        " FROM (SELECT *, pg_get_expr(polqual, polrelid) AS shown FROM pg_policy) AS p"
        " WHERE polrelid = ANY ($1::text[]::regclass[]) AND shown LIKE '%::uuid%'"
    )


# Each query returns the statements that break one object each; $1 are the tables, $2 the declared indexes.
BREAK: Final = {
    "drop a constraint": "SELECT format('ALTER TABLE %s DROP CONSTRAINT %I CASCADE', conrelid::regclass, conname)"
    " FROM pg_constraint WHERE conrelid = ANY ($1::text[]::regclass[]) AND contype IN ('c', 'u', 'p')",
    "devalidate a check": "SELECT format('ALTER TABLE %1$s DROP CONSTRAINT %2$I; ALTER TABLE %1$s"
    " ADD CONSTRAINT %2$I %3$s NOT VALID', conrelid::regclass, conname, pg_get_constraintdef(oid)) FROM pg_constraint"
    " WHERE conrelid = ANY ($1::text[]::regclass[]) AND contype = 'c' AND conname NOT LIKE '%_check'",
    "drop an index": "SELECT format('DROP INDEX %s', indexrelid::regclass) FROM pg_index i"
    " JOIN pg_class c ON c.oid = indexrelid WHERE indrelid = ANY ($1::text[]::regclass[])"
    " AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)"
    " AND c.relname = ANY ($2::text[])",
    "invalidate an index": "SELECT format('UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s', indexrelid)"
    " FROM pg_index i JOIN pg_class c ON c.oid = indexrelid WHERE indrelid = ANY ($1::text[]::regclass[])"
    " AND (indisunique OR c.relname = ANY ($2::text[]))",
    "drop a column": "SELECT format('ALTER TABLE %s DROP COLUMN %I CASCADE', attrelid::regclass, attname)"
    " FROM pg_attribute WHERE attrelid = ANY ($1::text[]::regclass[]) AND attnum > 0",
    "let a column be null": "SELECT format('ALTER TABLE %s ALTER %I DROP NOT NULL', attrelid::regclass, attname)"
    " FROM pg_attribute a WHERE attrelid = ANY ($1::text[]::regclass[]) AND attnum > 0 AND attnotnull"
    " AND attidentity = ''"
    " AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = attrelid AND indisprimary AND attnum = ANY (indkey))",
    "drop a default": "SELECT format('ALTER TABLE %s ALTER %I DROP DEFAULT', attrelid::regclass, attname)"
    " FROM pg_attribute WHERE attrelid = ANY ($1::text[]::regclass[]) AND atthasdef AND attgenerated = ''",
    "alter a default": "SELECT format('ALTER TABLE %s ALTER %I SET DEFAULT %s', attrelid::regclass, attname,"
    " CASE typcategory WHEN 'N' THEN shown || ' + 1' WHEN 'S' THEN shown || ' || ''x''' WHEN 'B' THEN 'NOT ' || shown"
    " WHEN 'D' THEN 'clock_timestamp()' ELSE '''[]''' END) FROM (SELECT *, pg_get_expr(adbin, adrelid) AS shown"
    " FROM pg_attrdef) AS d JOIN pg_attribute ON attrelid = adrelid AND attnum = adnum"
    " JOIN pg_type t ON t.oid = atttypid WHERE attrelid = ANY ($1::text[]::regclass[]) AND attgenerated = ''",
    "another comparison in a check": another_check(NEGATED),
    "another operator of the same name in a check": another_check(SHADOWED),
    "another comparison in an index": another_index(NEGATED),
    "another operator of the same name in an index": another_index(SHADOWED),
    "another order in an index": another_index("replace(shown, ', id)', ', id DESC)')"),
    "another operator of the same name in a policy": another_policy("replace(shown, ' = ', ' OPERATOR(elsewhere.=) ')"),
    "the same policy with another cast": another_policy("shown"),
    "drop a trigger": "SELECT format('DROP TRIGGER %I ON %s', tgname, tgrelid::regclass) FROM pg_trigger"
    " WHERE tgrelid = ANY ($1::text[]::regclass[]) AND NOT tgisinternal",
    "disable a trigger": "SELECT format('ALTER TABLE %s DISABLE TRIGGER %I', tgrelid::regclass, tgname) FROM pg_trigger"
    " WHERE tgrelid = ANY ($1::text[]::regclass[]) AND NOT tgisinternal",
    "another condition of a trigger": "SELECT format('DROP TRIGGER %I ON %s; %s', tgname, tgrelid::regclass,"
    " regexp_replace(shown, 'WHEN \\(.*\\) EXECUTE', 'WHEN (false) EXECUTE')) FROM (SELECT *, pg_get_triggerdef(oid)"
    " AS shown FROM pg_trigger) AS t WHERE tgrelid = ANY ($1::text[]::regclass[]) AND shown LIKE '%WHEN (%'",
    "another body of a function of pgtrigger": "SELECT format('UPDATE pg_proc SET prosrc = %L WHERE oid = %s',"
    " replace(prosrc, 'IF ', 'IF true OR '), oid) FROM pg_proc"
    " WHERE proname ~ '^_?pgtrigger_'",
    "switch row-level security": "SELECT format('ALTER TABLE %s %s ROW LEVEL SECURITY', oid::regclass,"
    " CASE WHEN relrowsecurity THEN 'DISABLE' ELSE 'ENABLE' END) FROM pg_class"
    " WHERE oid = ANY ($1::text[]::regclass[])",
    "drop a policy": "SELECT format('DROP POLICY %I ON %s', polname, polrelid::regclass) FROM pg_policy"
    " WHERE polrelid = ANY ($1::text[]::regclass[])",
    "drop a function": "SELECT format('DROP FUNCTION %s CASCADE', oid::regprocedure) FROM pg_proc"
    " WHERE proname ~ '^(salon_jobs|_?pgtrigger)_'",
    "flip a function's security": "SELECT format('ALTER FUNCTION %s SECURITY %s', oid::regprocedure,"
    " CASE WHEN prosecdef THEN 'INVOKER' ELSE 'DEFINER' END) FROM pg_proc WHERE proname ~ '^(salon_jobs|_?pgtrigger)_'",
}
ADD: Final = {
    "regroup a check": "ALTER TABLE salon_jobs_limit DROP CONSTRAINT salon_jobs_limit_rate, ADD CONSTRAINT"
    " salon_jobs_limit_rate CHECK ((rate IS NULL OR rate > 0.0) AND rate <= 1000000.0)",
    "add a trigger": f"{MUTE}; CREATE TRIGGER muted BEFORE INSERT ON {{}} FOR EACH ROW EXECUTE FUNCTION mute()",
    "add a rule": "CREATE RULE kept AS ON DELETE TO {} DO INSTEAD NOTHING",
    "add a check": "ALTER TABLE {} ADD CONSTRAINT narrow CHECK (false) NOT VALID",
    "add a unique index": "CREATE UNIQUE INDEX narrow ON {} ((1))",
    "add a column": "ALTER TABLE {} ADD COLUMN narrow integer",
    "add a policy": "CREATE POLICY wide ON {} USING (true)",
    "publish": "CREATE PUBLICATION copied FOR TABLE {}",
    "publish all": "CREATE PUBLICATION copied FOR ALL TABLES",
    "grant": "GRANT TRUNCATE ON {} TO PUBLIC",
    "own": "ALTER TABLE {} OWNER TO CURRENT_USER",
}
# Those of a database with roles: each owner of functions bypasses row-level security, the extra ones included.
OF_OWNERS: Final = {
    "grant an owner": "GRANT {} TO app",
    "grant an owner a table": "GRANT SELECT ON salon_jobs_job TO {}",
    "let an owner log in": "ALTER ROLE {} LOGIN",
    "give an owner a table": "ALTER TABLE salon_jobs_limit OWNER TO {}",
    "give an owner a function that anybody may call": "CREATE FUNCTION peek() RETURNS bigint LANGUAGE sql"
    " SECURITY DEFINER AS 'SELECT count(*) FROM salon_jobs_job'; ALTER FUNCTION peek OWNER TO {}",
    "let anybody call what an owner makes": "ALTER DEFAULT PRIVILEGES FOR ROLE {} GRANT EXECUTE ON FUNCTIONS TO PUBLIC",
}
READERS: Final = ("pg_read_file(text)", "pg_ls_dir(text)", "lo_import(text)", "pg_read_binary_file(text)")
KINDS: Final = (*BREAK, *ADD, *OF_OWNERS, "grant a function of the server")


def declared_indexes() -> list[str]:
    metas = [model._meta for model in apps.get_app_config("salon_jobs").get_models()]
    return [each.name for meta in metas for each in (*meta.indexes, *meta.constraints)]


def statement_of(superuser: Superuser, kind: str, draw: Draw) -> str:
    if kind in ADD:
        return ADD[kind].format(draw(sorted(TABLES)))
    declared = declare(Catalogue(superuser, using="default"))
    if kind in OF_OWNERS:
        return OF_OWNERS[kind].format(draw(sorted(declared.owner_roles)))
    if kind not in BREAK:
        grantee = draw(["PUBLIC", *(f'"{name}"' for name in declared.names or (declared.owner,))])
        return f"GRANT EXECUTE ON FUNCTION {draw([*READERS])} TO {grantee}"
    query = BREAK[kind]
    values = (list(TABLES), declared_indexes())
    cursor = psycopg.RawCursor(superuser)
    cursor.execute(query.encode(), values[: ("$1::" in query) + ("$2::" in query)])
    found = sorted(row[0] for row in cursor.fetchall())
    assert found, kind
    return str(draw(found))


def break_and_examine(superuser: Superuser, kind: str, times: int) -> None:
    @settings(
        max_examples=times,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
        database=None,
    )
    @given(st.data())
    def breaks(data: st.DataObject) -> None:
        with superuser.transaction(force_rollback=True):
            broken = statement_of(superuser, kind, lambda choices: data.draw(st.sampled_from(choices)))
            superuser.execute(f"{SHADOWS}; {broken}".encode())
            assert examine(superuser, using="default", with_orphans=False).drifts, broken

    breaks()


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_dropped_added_or_altered_is_found(superuser: Superuser, kind: str) -> None:
    assert examine(superuser, using="default", with_orphans=False).drifts == ()
    break_and_examine(superuser, kind, 6)


@pytest.mark.slow
@pytest.mark.parametrize("module", ["one_user_settings", "plain_settings"])
def test_it_is_found_with_one_database_user_and_without_stores_too(
    fresh: str, owned: Callable[[str], dict[str, str]], module: str
) -> None:
    environment = owned(f"tests.migrations.{module}")
    succeed("migrate", "--verbosity", "0", **environment)
    # The tables of jobs have no policies then, and may be published.
    skipped = [kind for kind in KINDS if kind in OF_OWNERS or "publish" in kind or "policy" in kind]
    code = f"from tests.access.test_any_drift import break_all; break_all({url_for(None, fresh)!r}, {skipped!r})"
    succeed("shell", "-v", "0", "-c", code, **environment)


def break_all(url: str, skipped: list[str]) -> None:
    with psycopg.connect(url, autocommit=True) as superuser:
        assert examine(superuser, using="default", with_orphans=False).drifts == ()
        for kind in KINDS:
            if kind not in skipped:
                break_and_examine(superuser, kind, 2)
