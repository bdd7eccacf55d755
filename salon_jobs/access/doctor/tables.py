"""Comparison of tables: owner, row-level security, privileges, and keys within one store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import LiteralString

from psycopg import sql

from salon_jobs.access.doctor.catalogue import PUBLIC, Catalogue, Relation
from salon_jobs.access.doctor.declaration import Declaration
from salon_jobs.access.doctor.drift import Drift, Right, compare_rights
from salon_jobs.access.policies import TableAccess
from salon_jobs.access.roles import identifier


def compare_security(relations: Mapping[str, Relation], declared: Declaration) -> Iterable[Drift]:
    """Yield tables that are missing, or whose row-level security is off, not forced, or on without being declared."""
    for access, is_protected in _all(declared):
        table = relations.get(access.table)
        if table is None:
            yield Drift(
                kind="table",
                where=f"table {access.table}",
                expected="a table",
                found="none",
                fix=(),
                needs_decision=True,
                hint="run python manage.py migrate",
            )
            continue
        for word, expected, seen in (
            ("ENABLE", is_protected, table.is_enabled),
            ("FORCE", is_protected and access.force, table.is_forced),
        ):
            if expected != seen:
                off = "DISABLE" if word == "ENABLE" else "NO FORCE"
                yield Drift(
                    kind="row-level security",
                    where=f"table {table.sql}",
                    expected=word if expected else off,
                    found=word if seen else off,
                    fix=(f"ALTER TABLE {table.sql} {word if expected else off} ROW LEVEL SECURITY",),
                )


def compare_tables(catalogue: Catalogue, relations: Mapping[str, Relation], declared: Declaration) -> Iterable[Drift]:
    """Yield other owners, and privileges on tables, columns and sequences that differ from those declared."""
    rights = _rights(catalogue, relations)
    sequences = _sequences(catalogue, relations)
    for access, _ in _all(declared):
        table = relations.get(access.table)
        if table is None:
            continue
        if table.owner != declared.owner:
            fix = (f"ALTER TABLE {table.sql} OWNER TO {identifier(declared.owner)}",)
            yield Drift(kind="owner", where=f"table {table.sql}", expected=declared.owner, found=table.owner, fix=fix)
        silent = {table.owner, declared.owner, *_host_owners(declared)}
        seen = _told(rights.get(table.oid, set()), silent, declared)
        expected = {
            Right(grant.role, privilege, column)
            for grant in access.grants
            for privilege in grant.privileges
            for column in grant.columns or ("",)
        }
        yield from compare_rights(f"TABLE {table.sql}", f"table {table.sql}", expected, seen)
        inserting = {grant.role for grant in access.grants if "INSERT" in grant.privileges}
        for sequence, is_serial, found in sequences.get(table.oid, ()):
            # An identity column needs only INSERT; a serial one also needs its sequence.
            needed = [Right(name, "USAGE") for name in inserting if is_serial]
            yield from compare_rights(
                f"SEQUENCE {sequence}", f"sequence {sequence}", needed, _told(found, silent, declared)
            )


def compare_triggers(catalogue: Catalogue, relations: Mapping[str, Relation]) -> Iterable[Drift]:
    """Yield disabled triggers of declared tables, including those of foreign keys."""
    found = catalogue.rows(
        """
        SELECT tgrelid::bigint, tgname, tgenabled = 'D' FROM pg_trigger
         WHERE tgrelid = ANY (%s::bigint[]::oid[]) AND tgenabled IN ('D', 'R') ORDER BY 1, 2
        """,
        [table.oid for table in relations.values()],
    )
    tables = {table.oid: table.sql for table in relations.values()}
    for oid, name, is_off in found:
        yield Drift(
            kind="trigger",
            where=f"trigger {name} of table {tables[oid]}",
            expected="ENABLE",
            found="DISABLE" if is_off else "ENABLE REPLICA",
            fix=(f"ALTER TABLE {tables[oid]} ENABLE TRIGGER {identifier(name)}",),
        )


def compare_rules(catalogue: Catalogue, relations: Mapping[str, Relation]) -> Iterable[Drift]:
    """Yield rewrite rules of declared tables."""
    found = catalogue.rows(
        """
        SELECT ev_class::bigint, rulename, pg_get_ruledef(oid) FROM pg_rewrite
         WHERE ev_class = ANY (%s::bigint[]::oid[]) ORDER BY 1, 2
        """,
        [table.oid for table in relations.values()],
    )
    tables = {table.oid: table.sql for table in relations.values()}
    for oid, name, definition in found:
        yield Drift(
            kind="rule",
            where=f"rule {name} of table {tables[oid]}",
            expected="none",
            found=" ".join(definition.split()),
            fix=(f"DROP RULE {identifier(name)} ON {tables[oid]}",),
            needs_decision=True,
            hint="it rewrites statements and runs with the rights of the table's owner; use a trigger instead",
        )


def _told(rights: set[Right], silent: set[str], declared: Declaration) -> set[Right]:
    """Return the privileges covered by the declaration: with one database user only those of PUBLIC."""
    return {
        right
        for right in rights
        if right.grantee not in silent and (declared.roles is not None or right.grantee == PUBLIC)
    }


def _all(declared: Declaration) -> Iterable[tuple[TableAccess, bool]]:
    yield from ((access, True) for access in declared.protected)
    yield from ((access, False) for access in declared.plain)


def _host_owners(declared: Declaration) -> Iterable[str]:
    """Return the owners of the host's own functions: what those need on its tables is not declared here."""
    ours = () if declared.roles is None else (declared.roles.fan_out_owner,)
    return (name for name in declared.owner_roles if name not in ours)


def _rights(catalogue: Catalogue, relations: Mapping[str, Relation]) -> dict[int, set[Right]]:
    found = catalogue.rows(
        f"""
        SELECT o.oid::bigint, coalesce(g.rolname, '{PUBLIC}'), a.privilege_type, o.name, a.is_grantable
          FROM (
            SELECT oid, '' AS name, relacl AS acl FROM pg_class WHERE oid = ANY (%(oids)s::bigint[]::oid[])
             UNION ALL
            SELECT attrelid, attname, attacl FROM pg_attribute
             WHERE attrelid = ANY (%(oids)s::bigint[]::oid[]) AND attacl IS NOT NULL AND NOT attisdropped
          ) o
         CROSS JOIN aclexplode(o.acl) a
          LEFT JOIN pg_roles g ON g.oid = a.grantee
        """,
        oids=[table.oid for table in relations.values()],
    )
    rights: dict[int, set[Right]] = {}
    for oid, grantee, privilege, column, option in found:
        rights.setdefault(oid, set()).add(Right(grantee, privilege, column, option))
    return rights


def _sequences(
    catalogue: Catalogue, relations: Mapping[str, Relation]
) -> dict[int, list[tuple[str, bool, set[Right]]]]:
    """Return the sequences of each table's columns: name, whether of a serial column, privileges."""
    found = catalogue.rows(
        f"""
        SELECT d.refobjid::bigint, format('%%I.%%I', n.nspname, c.relname), d.deptype = 'a',
               ARRAY(SELECT coalesce(g.rolname, '{PUBLIC}') || ' ' || a.privilege_type || ' ' || a.is_grantable
                       FROM aclexplode(c.relacl) a LEFT JOIN pg_roles g ON g.oid = a.grantee)
          FROM pg_depend d
          JOIN pg_class c ON c.oid = d.objid AND c.relkind = 'S'
          JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
           AND d.refobjid = ANY (%(oids)s::bigint[]::oid[])
        """,
        oids=[table.oid for table in relations.values()],
    )
    sequences: dict[int, list[tuple[str, bool, set[Right]]]] = {}
    for oid, name, is_serial, texts in found:
        rights = set(map(Right.of, texts))
        sequences.setdefault(oid, []).append((name, is_serial, rights))
    return sequences


def _columns(numbers: LiteralString, table: LiteralString) -> LiteralString:
    """Return the SQL expression for the names of a key's columns, in its order."""
    return (
        f"ARRAY(SELECT attname::text FROM unnest({numbers}) WITH ORDINALITY AS u (number, at)"
        f" JOIN pg_attribute ON attrelid = {table} AND attnum = u.number ORDER BY u.at)"
    )


def compare_store_keys(
    catalogue: Catalogue, relations: Mapping[str, Relation], declared: Declaration
) -> Iterable[Drift]:
    """Yield same-store keys that are missing or on other columns: rows could refer to another store's rows."""
    for key in declared.keys:
        table, to = relations.get(key.table), relations.get(key.to_table)
        if table is None or to is None:
            continue
        found = catalogue.rows(
            f"""
            SELECT contype = 'f' AND confrelid = %s::bigint::oid
                   AND {_columns("conkey", "conrelid")} = %s AND {_columns("confkey", "confrelid")} = %s,
                   pg_get_constraintdef(oid)
              FROM pg_constraint WHERE conrelid = %s::bigint::oid AND conname = %s
            """,
            to.oid,
            list(key.columns),
            list(key.to_columns),
            table.oid,
            key.name,
        )
        if found and found[0][0]:
            continue
        own = f"FOREIGN KEY ({_listed(key.columns)}) REFERENCES {to.sql} ({_listed(key.to_columns)})"
        drop = [f"ALTER TABLE {table.sql} DROP CONSTRAINT {identifier(key.name)}"] if found else []
        add = f"ALTER TABLE {table.sql} ADD CONSTRAINT {identifier(key.name)} {own} DEFERRABLE INITIALLY DEFERRED"
        yield Drift(
            kind="foreign key",
            where=f"foreign key {key.name} of table {table.sql}",
            expected=own,
            found=found[0][1] if found else "none",
            fix=(*drop, f"{add} NOT VALID"),
            hint="look once more after it: rows that came meanwhile are to be validated",
        )


def _listed(columns: Iterable[str]) -> str:
    return ", ".join(map(identifier, columns))


def find_orphans(catalogue: Catalogue) -> Iterable[Drift]:
    """Yield keys with rows that refer to nothing, or that were never validated. Reads both tables of each key.

    Only a role that bypasses row-level security sees the rows.
    """
    found = catalogue.rows(
        f"""
        SELECT k.conname, k.convalidated,
               ARRAY[n.nspname, c.relname]::text[], ARRAY[m.nspname, p.relname]::text[],
               {_columns("k.conkey", "k.conrelid")}, {_columns("k.confkey", "k.confrelid")},
               c.relforcerowsecurity, p.relforcerowsecurity
          FROM pg_constraint k
          JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
          JOIN pg_class p ON p.oid = k.confrelid JOIN pg_namespace m ON m.oid = p.relnamespace
         WHERE k.contype = 'f' AND k.conparentid = 0 AND (c.relforcerowsecurity OR p.relforcerowsecurity)
         ORDER BY 3, 1
        """
    )
    for name, is_valid, child, parent, columns, keys, child_forced, parent_forced in found:
        orphans = _orphans(child, parent, columns, keys)
        ((count,),) = catalogue.connection.execute(
            sql.SQL("SELECT count(*) FROM ({}) AS orphans").format(orphans)
        ).fetchall()
        where = f"foreign key {name} of table {sql.Identifier(*child).as_string()}"
        if count:
            yield Drift(
                kind="orphans",
                where=where,
                expected="no rows that refer to nothing",
                found=f"{count:,} rows",
                fix=(orphans.as_string(),),
                needs_decision=True,
                hint="this shows them; delete or fix each by hand",
            )
        elif not is_valid:
            forced = [t for t, is_forced in ((child, child_forced), (parent, parent_forced)) if is_forced]
            # When run as the owner, the validation must not be subject to the policies.
            lift = [f"ALTER TABLE {sql.Identifier(*t).as_string()} NO FORCE ROW LEVEL SECURITY" for t in forced]
            force = [f"ALTER TABLE {sql.Identifier(*t).as_string()} FORCE ROW LEVEL SECURITY" for t in forced]
            validate = sql.SQL("ALTER TABLE {} VALIDATE CONSTRAINT {}").format(
                sql.Identifier(*child), sql.Identifier(name)
            )
            yield Drift(
                kind="foreign key",
                where=where,
                expected="validated",
                found="NOT VALID",
                fix=(*lift, validate.as_string(), *force),
            )


def _orphans(child: list[str], parent: list[str], columns: list[str], keys: list[str]) -> sql.Composed:
    present = sql.SQL(" AND ").join(sql.SQL("c.{} IS NOT NULL").format(sql.Identifier(column)) for column in columns)
    match = sql.SQL(" AND ").join(
        sql.SQL("p.{} = c.{}").format(sql.Identifier(key), sql.Identifier(column))
        for key, column in zip(keys, columns, strict=True)
    )
    return sql.SQL("SELECT c.* FROM {} AS c WHERE {} AND NOT EXISTS (SELECT FROM {} AS p WHERE {})").format(
        sql.Identifier(*child), present, sql.Identifier(*parent), match
    )
