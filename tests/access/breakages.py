"""What breaks every object of each kind, and whether the doctor names each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import psycopg
from django.apps import apps

from salon_jobs.access.doctor.catalogue import Catalogue
from salon_jobs.access.doctor.declaration import declare
from salon_jobs.access.doctor.examination import examine
from salon_jobs.access.job_tables import own_tables

Superuser = psycopg.Connection[Any]
# A trigger's function, and what shadows the server's own operators and casts, as whoever gets rows past a condition
# would make it.
PRELUDE: Final = "; ".join(
    (
        "CREATE FUNCTION mute() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
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

# Each query returns, for every object, its table or none, what a drift calls it, and the statements that break it.
# $1 are the tables, $2 the declared names. A constraint without a declared name is called by what it says.
CONSTRAINT: Final = (
    "SELECT conrelid::regclass, CASE WHEN conname = ANY ($2::text[]) THEN conname::text"
    " ELSE split_part(pg_get_constraintdef(oid), ' (', 1) END, format('ALTER TABLE %1$s DROP CONSTRAINT %2$I {}',"
    " conrelid::regclass, conname, {}) FROM (SELECT *, pg_get_constraintdef(oid) AS shown FROM pg_constraint) AS c"
    " WHERE conrelid = ANY ($1::text[]::regclass[]) AND {}"
)
ADD_CONSTRAINT: Final = "; ALTER TABLE %1$s ADD CONSTRAINT %2$I %3$s"
INDEX: Final = (
    "SELECT indrelid::regclass, c.relname || ' of', format('{} {}', indexrelid::regclass, {})"
    " FROM (SELECT *, pg_get_indexdef(indexrelid) AS shown FROM pg_index) AS i JOIN pg_class c ON c.oid = indexrelid"
    " WHERE indrelid = ANY ($1::text[]::regclass[]) AND c.relname = ANY ($2::text[])"
    " AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)"
)
COLUMN: Final = (
    "SELECT attrelid::regclass, 'column ' || attname || ' of', format('ALTER TABLE %s {}', attrelid::regclass, attname)"
    " FROM pg_attribute a WHERE attrelid = ANY ($1::text[]::regclass[]) AND attnum > 0 AND NOT attisdropped"
)
POLICY: Final = (
    "SELECT polrelid::regclass, 'policy ' || polname || ' of', format('{}', polname, polrelid::regclass, {})"
    " FROM (SELECT *, pg_get_expr(polqual, polrelid) AS shown FROM pg_policy) AS p"
    " WHERE polrelid = ANY ($1::text[]::regclass[])"
)
TRIGGER: Final = (
    "SELECT tgrelid::regclass, 'trigger ' || tgname || ' of', format('{}', tgname, tgrelid::regclass, {})"
    " FROM (SELECT *, pg_get_triggerdef(oid) AS shown FROM pg_trigger) AS t"
    " WHERE tgrelid = ANY ($1::text[]::regclass[]) AND NOT tgisinternal"
)
FUNCTION: Final = "SELECT NULL, proname || '(', format({}) FROM pg_proc WHERE proname ~ '^({})_'"
ALL_OURS: Final = "salon_jobs|_?pgtrigger"


def another_check(definition: str) -> str:
    return CONSTRAINT.format(ADD_CONSTRAINT, definition, f"contype = 'c' AND {definition} <> shown")


def another_index(definition: str) -> str:
    return INDEX.format("DROP INDEX %s;", "%s", definition) + f" AND {definition} <> shown"


def another_policy(condition: str) -> str:
    return POLICY.format("ALTER POLICY %I ON %s USING (%s)", condition) + " AND shown LIKE '%::uuid%'"


BREAK: Final = {
    "drop a constraint": CONSTRAINT.format("CASCADE", "''", "contype IN ('c', 'u', 'p')"),
    "devalidate a check": CONSTRAINT.format(
        f"{ADD_CONSTRAINT} NOT VALID", "shown", "contype = 'c' AND conname NOT LIKE '%_check'"
    ),
    "drop an index": INDEX.format("DROP INDEX %s", "", "''"),
    "invalidate an index": "SELECT indrelid::regclass, c.relname || ' of',"
    " format('UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s', indexrelid)"
    " FROM pg_index i JOIN pg_class c ON c.oid = indexrelid WHERE indrelid = ANY ($1::text[]::regclass[])"
    " AND (indisunique OR c.relname = ANY ($2::text[]))",
    "drop a column": COLUMN.format("DROP COLUMN IF EXISTS %I CASCADE"),
    "let a column be null": COLUMN.format("ALTER %I DROP NOT NULL") + " AND attnotnull AND attidentity = ''"
    " AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = attrelid AND indisprimary AND attnum = ANY (indkey))",
    "drop a default": COLUMN.format("ALTER %I DROP DEFAULT") + " AND atthasdef AND attgenerated = ''",
    "alter a default": "SELECT adrelid::regclass, 'column ' || attname || ' of',"
    " format('ALTER TABLE %s ALTER %I SET DEFAULT %s', attrelid::regclass, attname,"
    " CASE typcategory WHEN 'N' THEN shown || ' + 1' WHEN 'S' THEN shown || ' || ''x''' WHEN 'B' THEN 'NOT ' || shown"
    " WHEN 'D' THEN 'clock_timestamp()' ELSE '''[0]''' END) FROM (SELECT *, pg_get_expr(adbin, adrelid) AS shown"
    " FROM pg_attrdef) AS d JOIN pg_attribute ON attrelid = adrelid AND attnum = adnum"
    " JOIN pg_type t ON t.oid = atttypid WHERE attrelid = ANY ($1::text[]::regclass[]) AND attgenerated = ''",
    "another comparison in a check": another_check(NEGATED),
    "another operator of the same name in a check": another_check(SHADOWED),
    "another comparison in an index": another_index(NEGATED),
    "another operator of the same name in an index": another_index(SHADOWED),
    "another order in an index": another_index("replace(shown, ', id)', ', id DESC)')"),
    "another operator of the same name in a policy": another_policy("replace(shown, ' = ', ' OPERATOR(elsewhere.=) ')"),
    "the same policy with another cast": another_policy("shown"),
    "drop a trigger": TRIGGER.format("DROP TRIGGER %I ON %s", "''"),
    "disable a trigger": TRIGGER.format("ALTER TABLE %2$s DISABLE TRIGGER %1$I", "''"),
    "another condition of a trigger": TRIGGER.format(
        "DROP TRIGGER %I ON %s; %s", "regexp_replace(shown, 'WHEN \\(.*\\) EXECUTE', 'WHEN (false) EXECUTE')"
    )
    + " AND shown LIKE '%WHEN (%'",
    "another body of a function of pgtrigger": FUNCTION.format(
        "'UPDATE pg_proc SET prosrc = %L WHERE oid = %s', replace(prosrc, 'IF ', 'IF true OR '), oid", "_?pgtrigger"
    ),
    "switch row-level security": "SELECT oid::regclass, 'row-level security',"
    " format('ALTER TABLE %s %s ROW LEVEL SECURITY', oid::regclass,"
    " CASE WHEN relrowsecurity THEN 'DISABLE' ELSE 'ENABLE' END) FROM pg_class"
    " WHERE oid = ANY ($1::text[]::regclass[])",
    "drop a policy": POLICY.format("DROP POLICY %I ON %s", "''"),
    "drop a function": FUNCTION.format("'DROP FUNCTION IF EXISTS %s CASCADE', oid::regprocedure", ALL_OURS),
    "flip a function's security": FUNCTION.format(
        "'ALTER FUNCTION %s SECURITY %s', oid::regprocedure, CASE WHEN prosecdef THEN 'INVOKER' ELSE 'DEFINER' END",
        ALL_OURS,
    ),
}
# What a drift calls it, and the statement, for each table.
ADD: Final = {
    "add a trigger": (
        "trigger muted of",
        "CREATE TRIGGER muted BEFORE INSERT ON {0} FOR EACH ROW EXECUTE FUNCTION mute()",
    ),
    "add a rule": ("rule kept of", "CREATE RULE kept AS ON DELETE TO {0} DO INSTEAD NOTHING"),
    "add a check": ("slim of", "ALTER TABLE {0} ADD CONSTRAINT slim CHECK (false) NOT VALID"),
    "add a unique index": ("narrow_{0} of", "CREATE UNIQUE INDEX narrow_{0} ON {0} ((1))"),
    "add a column": ("column narrow of", "ALTER TABLE {0} ADD COLUMN narrow integer"),
    "add a policy": ("policy wide of", "CREATE POLICY wide ON {0} USING (true)"),
    "publish": ("publication copied_{0} of", "CREATE PUBLICATION copied_{0} FOR TABLE {0}"),
    "grant": ("role PUBLIC", "GRANT TRUNCATE ON {0} TO PUBLIC"),
    "own": ("owner: ", "ALTER TABLE {0} OWNER TO CURRENT_USER"),
}
# Those of a database with roles: each owner of functions bypasses row-level security, the extra ones included.
OF_OWNERS: Final = {
    "grant an owner": ("a member of {0}", "GRANT {0} TO app"),
    "grant an owner a table": ('"salon_jobs_job", role {0}', "GRANT SELECT ON salon_jobs_job TO {0}"),
    "let an owner log in": ("attribute: role {0}: ", "ALTER ROLE {0} LOGIN"),
    "give an owner a table": ("found {0}", "CREATE TABLE given_{0} (); ALTER TABLE given_{0} OWNER TO {0}"),
    "give an owner a function that anybody may call": (
        "peek_{0}(), role PUBLIC",
        (
            "CREATE FUNCTION peek_{0}() RETURNS int LANGUAGE sql SECURITY DEFINER AS 'SELECT 1';"
            " ALTER FUNCTION peek_{0} OWNER TO {0}"
        ),
    ),
    "let anybody call what an owner makes": (
        "new functions of {0}, role PUBLIC",
        "ALTER DEFAULT PRIVILEGES FOR ROLE {0} GRANT EXECUTE ON FUNCTIONS TO PUBLIC",
    ),
}
READERS: Final = ("pg_read_file(text)", "pg_ls_dir(text)", "lo_import(text)", "pg_read_binary_file(text)")
ONCE: Final = {
    "regroup a check": (
        "salon_jobs_limit_rate of",
        (
            "ALTER TABLE salon_jobs_limit DROP CONSTRAINT salon_jobs_limit_rate, ADD CONSTRAINT"
            " salon_jobs_limit_rate CHECK ((rate IS NULL OR rate > 0.0) AND rate <= 1000000.0)"
        ),
    ),
    "publish all": ("publication copied of", "CREATE PUBLICATION copied FOR ALL TABLES"),
}
# What is broken at once, and examined once: no two kinds of a group have drifts that are called the same.
GROUPS: Final = {
    "add": (*ADD, *ONCE, "grant a function of the server"),
    "owners": tuple(OF_OWNERS),
    "switch": (
        "devalidate a check",
        "invalidate an index",
        "let a column be null",
        "disable a trigger",
        "another body of a function of pgtrigger",
        "switch row-level security",
    ),
    "alter": (
        "another comparison in a check",
        "another comparison in an index",
        "alter a default",
        "another condition of a trigger",
        "flip a function's security",
        "drop a policy",
    ),
    "shadow": (
        "another operator of the same name in a check",
        "another operator of the same name in an index",
        "drop a default",
        "drop a trigger",
    ),
    "drop": ("drop a constraint", "drop an index"),
    "drop functions": ("drop a function", "another order in an index"),
    "drop columns": ("drop a column",),
    # They shadow what the server has for uuid.
    "shadow in a policy": ("another operator of the same name in a policy",),
    "cast in a policy": ("the same policy with another cast",),
}
OF_UUIDS: Final = ("shadow in a policy", "cast in a policy")


class Broken(NamedTuple):
    """A statement that breaks an object, and the texts that a drift of it has, all of them."""

    statement: str
    texts: tuple[str, ...]


def declared_names() -> list[str]:
    metas = [model._meta for model in apps.get_app_config("salon_jobs").get_models()]
    return [each.name for meta in metas for each in (*meta.indexes, *meta.constraints)]


def of_kind(superuser: Superuser, kind: str) -> Iterator[Broken]:
    """Yield what breaks every object of a kind."""
    declared = declare(Catalogue(superuser, using="default"))
    if kind in ADD:
        text, statement = ADD[kind]
        # The server publishes no unlogged table.
        tables = (name for name in own_tables() if (kind, name) != ("publish", "salon_jobs_change"))
        yield from (Broken(statement.format(name), (text.format(name), f'."{name}"')) for name in tables)
    elif kind in OF_OWNERS:
        text, statement = OF_OWNERS[kind]
        yield from (Broken(statement.format(name), (text.format(name),)) for name in declared.owner_roles)
    elif kind in ONCE:
        text, statement = ONCE[kind]
        yield Broken(statement, (text,))
    elif kind not in BREAK:
        for name in ("PUBLIC", *(declared.names or (declared.owner,))):
            grantee = name if name == "PUBLIC" else f'"{name}"'
            for function in READERS:
                yield Broken(f"GRANT EXECUTE ON FUNCTION {function} TO {grantee}", (f"{function}, role {name}:",))
    else:
        query, values = BREAK[kind], (list(own_tables()), declared_names())
        cursor = psycopg.RawCursor(superuser)
        cursor.execute(query.encode(), values[: ("$1::" in query) + ("$2::" in query)])
        for table, text, statement in cursor.fetchall():
            yield Broken(statement, (text,) if table is None else (text, f'."{table}"'))


def break_and_examine(superuser: Superuser, kinds: Sequence[str]) -> None:
    with superuser.transaction(force_rollback=True):
        superuser.execute(PRELUDE.encode())
        broken = {kind: [*of_kind(superuser, kind)] for kind in kinds}
        for each in chain(*broken.values()):
            superuser.execute(each.statement.encode())
        drifts = [str(drift) for drift in examine(superuser, using="default", with_orphans=False).drifts]
    # A function that is missing is named with quotation marks, and one that is there without.
    drifts += [drift.replace('"', "") for drift in drifts]
    assert all(broken.values()), broken
    unseen = {
        each
        for each in chain(*broken.values())
        if not any(all(text in drift for text in each.texts) for drift in drifts)
    }
    assert unseen == set()


def break_all(url: str, skipped: list[str]) -> None:
    with psycopg.connect(url, autocommit=True) as superuser:
        assert examine(superuser, using="default", with_orphans=False).drifts == ()
        for kinds in GROUPS.values():
            if left := [kind for kind in kinds if kind not in skipped]:
                break_and_examine(superuser, left)
