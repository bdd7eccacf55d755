"""Comparison of roles, their memberships and settings, and of the privileges on database and schema."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from salon_jobs.access.bootstrap import alter_role, grant_owner
from salon_jobs.access.doctor.catalogue import PUBLIC, Catalogue
from salon_jobs.access.doctor.declaration import Declaration
from salon_jobs.access.doctor.drift import Drift, Right, compare_rights, role
from salon_jobs.access.policies import DEMAND_GUC
from salon_jobs.access.roles import ATTRIBUTE_COLUMNS, SCHEMA, identifier
from salon_jobs.conf import settings as conf

# What members of the predefined roles can do.
_POWERS: Final = {
    "pg_execute_server_program": "run programs on the server's machine, which makes them superusers",
    "pg_read_server_files": "read every file on the server, including the tables of all stores",
    "pg_write_server_files": "write any file on the server, which makes them superusers",
    "pg_read_all_data": "read every table",
    "pg_write_all_data": "change every table",
    "pg_signal_backend": "end the sessions of other roles",
    "pg_maintain": "lock and rewrite every table",
    "pg_create_subscription": "bring in rows from other servers",
}
_AS_GOOD_AS_SUPERUSER: Final = ("pg_execute_server_program", "pg_read_server_files", "pg_write_server_files")
# Settings with which no session of our roles may start, and what each one does.
_DANGEROUS: Final = {
    "search_path": "names may resolve to tables without policies, in other schemas",
    "row_security": "queries of protected tables fail",
    "role": "sessions act as another role",
    "session_authorization": "sessions act as another role",
    "session_replication_role": "triggers and foreign keys do not fire",
    "pgtrigger.ignore": "the triggers it names do not fire",
    DEMAND_GUC: "sessions without a store get one",
    "default_transaction_read_only": "nothing can be written",
    "local_preload_libraries": "sessions load the libraries it names",
    "session_preload_libraries": "sessions load the libraries it names",
    "dynamic_library_path": "C functions are loaded from the folders it names",
    "standard_conforming_strings": "backslashes in quoted text are escapes, which quoting does not expect",
}


def compare_roles(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield roles that are missing or have other attributes."""
    found: dict[str, dict[str, bool]] = {
        name: dict(zip(ATTRIBUTE_COLUMNS, attributes, strict=True))
        for name, *attributes in catalogue.rows(
            f"SELECT rolname, {', '.join(ATTRIBUTE_COLUMNS.values())} FROM pg_roles WHERE rolname = ANY (%s::text[])",
            list(declared.names),
        )
    }
    for spec, name in declared.named:
        if name not in found:
            yield Drift(
                kind="role",
                where=f"role {name}",
                expected="a role",
                found="none",
                fix=(),
                needs_decision=True,
                hint="run python manage.py bootstrap_roles",
            )
            continue
        wrong = {word: on for word, on in spec.attributes.items() if found[name][word] != on}
        if wrong:
            yield Drift(
                kind="role attribute",
                where=f"role {name}",
                expected=" ".join(word if on else f"NO{word}" for word, on in wrong.items()),
                found=" ".join(f"NO{word}" if on else word for word, on in wrong.items()),
                fix=(alter_role(spec, name),),
            )


def compare_memberships(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield undeclared members of the migrator and of owners, and undeclared memberships of our roles.

    Both ends are checked, so that anyone who reaches an owner through intermediate roles shows up at one of them.
    """
    options = "m.inherit_option, m.set_option" if catalogue.version >= 160000 else "false, true"
    found = catalogue.rows(
        f"""
        SELECT granted.rolname, member.rolname, grantor.rolname, m.admin_option, {options}
          FROM pg_auth_members m
          JOIN pg_roles granted ON granted.oid = m.roleid
          JOIN pg_roles member ON member.oid = m.member
          LEFT JOIN pg_roles grantor ON grantor.oid = m.grantor
         WHERE NOT member.rolsuper AND (granted.rolname = ANY (%s::text[]) OR member.rolname = ANY (%s::text[]))
         ORDER BY 1, 2, 3
        """,
        list(declared.guarded),
        list(declared.names),
    )
    owners = declared.owner_roles
    powers = _powers_of(catalogue, {granted for granted, *_ in found})
    held: set[str] = set()
    for granted, member, grantor, *flags in found:
        revoke = f"REVOKE {identifier(granted)} FROM {identifier(member)}"
        revoke += f" GRANTED BY {identifier(grantor)} CASCADE" if grantor else " CASCADE"
        if granted not in owners or member != declared.owner:
            yield Drift(
                kind="membership",
                where=f"role {member}",
                expected=f"not a member of {granted}",
                found=f"a member of {granted}, granted by {grantor}",
                fix=(revoke,),
                hint=powers.get(granted, ""),
            )
        elif flags != [False, False, True]:
            held.add(granted)
            said = (f"{word} {str(on).upper()}" for word, on in zip(("ADMIN", "INHERIT", "SET"), flags, strict=True))
            yield Drift(
                kind="membership",
                where=f"role {member}",
                expected=f"a member of {granted} WITH ADMIN FALSE, INHERIT FALSE, SET TRUE",
                found=f"WITH {', '.join(said)}, granted by {grantor}",
                fix=(revoke, grant_owner(granted, declared.owner, version=catalogue.version)),
            )
        else:
            held.add(granted)
    for granted in owners:
        if granted not in held:
            yield Drift(
                kind="membership",
                where=f"role {declared.owner}",
                expected=f"a member of {granted}",
                found="none",
                fix=(grant_owner(granted, declared.owner, version=catalogue.version),),
            )


def compare_one_user(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield attributes and memberships that exempt the one database user from declared row-level security."""
    user = identifier(declared.owner)
    found = catalogue.rows("SELECT oid = 10, rolsuper, rolbypassrls FROM pg_roles WHERE rolname = %s", declared.owner)
    if not declared.protected or not found:
        return
    ((is_initial, *flags),) = found
    words = [word for word, on in zip(("SUPERUSER", "BYPASSRLS"), flags, strict=True) if on]
    why = "it sees and changes the rows of all stores"
    if words:
        other = "name a user in DATABASES that owns the database alone, and run python manage.py salon_jobs convert"
        yield Drift(
            kind="role attribute",
            where=f"role {declared.owner}",
            expected=" ".join(f"NO{word}" for word in words),
            found=" ".join(words),
            needs_decision=True,
            # PostgreSQL refuses to remove SUPERUSER from its first role.
            fix=() if is_initial else (f"ALTER ROLE {user} {' '.join(f'NO{word}' for word in words)}",),
            hint=f"{why}; {other}" if is_initial else f"{why}; or {other}",
        )
    if "SUPERUSER" in words:
        return
    granted = catalogue.rows(
        """
        SELECT granted.rolname, grantor.rolname, granted.rolsuper, granted.rolbypassrls
          FROM pg_auth_members m
          JOIN pg_roles granted ON granted.oid = m.roleid
          LEFT JOIN pg_roles grantor ON grantor.oid = m.grantor
         WHERE m.member = %s::regrole
           AND EXISTS (SELECT FROM pg_roles r WHERE pg_has_role(granted.oid, r.oid, 'MEMBER')
                          AND (r.rolsuper OR r.rolbypassrls OR r.rolname = ANY (%s::text[])))
         ORDER BY 1, 2
        """,
        user,
        list(_AS_GOOD_AS_SUPERUSER),
    )
    powers = _powers_of(catalogue, {name for name, *_ in granted})
    for name, grantor, *_ in granted:
        by = f" GRANTED BY {identifier(grantor)}" if grantor else ""
        yield Drift(
            kind="membership",
            where=f"role {declared.owner}",
            expected=f"not a member of {name}",
            found=f"a member of {name}, granted by {grantor}",
            needs_decision=True,
            fix=(f"REVOKE {identifier(name)} FROM {user}{by} CASCADE",),
            hint=powers.get(name, why),
        )


def _powers_of(catalogue: Catalogue, granted: Iterable[str]) -> dict[str, str]:
    """Return what members of these roles can do through predefined roles, directly or through other roles."""
    found = catalogue.rows(
        """
        SELECT granted.rolname, own.rolname
          FROM pg_roles granted JOIN pg_roles own ON pg_has_role(granted.oid, own.oid, 'MEMBER')
         WHERE granted.rolname = ANY (%s::text[]) AND own.rolname = ANY (%s::text[]) AND NOT granted.rolsuper
         ORDER BY 1, 2
        """,
        sorted(granted),
        list(_POWERS),
    )
    powers: dict[str, list[str]] = {}
    for name, own in found:
        through = "" if name == own else f" (through {own})"
        powers.setdefault(name, []).append(f"members can {_POWERS[own]}{through}")
    return {name: "; ".join(texts) for name, texts in powers.items()}


def compare_settings(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield dangerous settings stored for a role, for the database, or for a role in it.

    A stored store or user counts for any role, the others only for our roles.
    """
    named = {declared.store_guc.lower(): "sessions start in a store", conf.user_guc.lower(): "sessions start as a user"}
    found = catalogue.rows(
        """
        SELECT r.rolname, d.datname, split_part(setting, '=', 1), substr(setting, strpos(setting, '=') + 1)
          FROM pg_db_role_setting s
         CROSS JOIN unnest(s.setconfig) AS setting
          LEFT JOIN pg_roles r ON r.oid = s.setrole
          LEFT JOIN pg_database d ON d.oid = s.setdatabase
         WHERE coalesce(d.datname, %(database)s) = %(database)s
           AND (lower(split_part(setting, '=', 1)) = ANY (%(identity)s::text[])
                OR (lower(split_part(setting, '=', 1)) = ANY (%(dangerous)s::text[])
                    AND coalesce(r.rolname = ANY (%(roles)s::text[]), true)))
        """,
        database=catalogue.database,
        identity=list(named),
        dangerous=list(_DANGEROUS),
        roles=[*declared.names, declared.owner],
    )
    for grantee, database, setting, value in found:
        if grantee is None and database is not None:
            whose = f"DATABASE {identifier(database)}"
        else:
            whose = f"ROLE {'ALL' if grantee is None else identifier(grantee)}"
            whose += f" IN DATABASE {identifier(database)}" if database is not None else ""
        yield Drift(
            kind="setting",
            where=whose.replace('"', "").lower(),
            expected=f"no {setting}",
            found=f"{setting} = {value}",
            fix=(f"ALTER {whose} RESET {setting}",),
            hint=(named | _DANGEROUS)[setting.lower()],
            # Other objects may depend on it, such as extensions in a schema of their own.
            needs_decision=setting.lower() == "search_path",
        )


KINDS: Final = {"r": "TABLES", "S": "SEQUENCES", "f": "FUNCTIONS", "T": "TYPES", "n": "SCHEMAS", "L": "LARGE OBJECTS"}
# Built-in privileges of PUBLIC on new objects.
OF_PUBLIC: Final = {"f": "EXECUTE", "T": "USAGE"}


def compare_database(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield excess and missing privileges of PUBLIC and our roles on the database."""
    found = catalogue.rows(
        f"""
        SELECT coalesce(g.rolname, '{PUBLIC}'), a.privilege_type, a.is_grantable
          FROM pg_database d
         CROSS JOIN aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) a
          LEFT JOIN pg_roles g ON g.oid = a.grantee
         WHERE d.datname = current_database() AND a.grantee <> d.datdba
        """
    )
    ours = {*declared.names, PUBLIC}
    ((owner,),) = catalogue.rows("SELECT datdba::regrole::name FROM pg_database WHERE datname = current_database()")
    on, where = f"DATABASE {identifier(catalogue.database)}", f"database {catalogue.database}"
    if owner in declared.names and owner != declared.owner:
        fix = (f"ALTER {on} OWNER TO {identifier(declared.owner)}",)
        yield Drift(kind="owner", where=where, expected=f"not {owner}", found=owner, fix=fix)
    seen = {Right(name, what, may_grant=option) for name, what, option in found if name in ours}
    expected = {Right(name, what) for spec, name in declared.named for what in spec.database_privileges}
    if owner == declared.owner:  # the owner has all of them
        expected = {right for right in expected if right.grantee != owner}
    yield from compare_rights(on, where, expected, seen)


def compare_schema(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield differing privileges of PUBLIC and our roles on the schema, and who else may create objects in it."""
    found = catalogue.rows(
        f"""
        SELECT coalesce(g.rolname, '{PUBLIC}'), a.privilege_type, a.is_grantable
          FROM pg_namespace n CROSS JOIN aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a
          LEFT JOIN pg_roles g ON g.oid = a.grantee
         WHERE n.nspname = %s AND a.grantee <> n.nspowner
        """,
        SCHEMA,
    )
    on, where = f"SCHEMA {SCHEMA}", f"schema {SCHEMA}"
    for (owner,) in catalogue.rows("SELECT nspowner::regrole::name FROM pg_namespace WHERE nspname = %s", SCHEMA):
        if owner != declared.owner:
            fix = (f"ALTER {on} OWNER TO {identifier(declared.owner)}",)
            yield Drift(kind="owner", where=where, expected=declared.owner, found=owner, fix=fix)
    ours = {*declared.names, PUBLIC}
    seen = {Right(name, what, may_grant=option) for name, what, option in found if name in ours or what == "CREATE"}
    expected = {Right(name, "USAGE") for spec, name in declared.named if not spec.owns_schema}
    yield from compare_rights(on, where, expected, {right for right in seen if right.grantee != declared.owner})


def compare_other_schemas(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield other schemas in which PUBLIC or one of our roles, except the migrator, may create objects."""
    found = catalogue.rows(
        f"""
        SELECT n.nspname, coalesce(g.rolname, '{PUBLIC}'), a.is_grantable
          FROM pg_namespace n CROSS JOIN aclexplode(n.nspacl) a LEFT JOIN pg_roles g ON g.oid = a.grantee
         WHERE n.nspname <> %s AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner
           AND (a.grantee = 0 OR g.rolname = ANY (%s::text[]))
         ORDER BY 1, 2
        """,
        SCHEMA,
        [name for name in declared.names if name != declared.owner],
    )
    for schema, name, option in found:
        right = Right(name, "CREATE", may_grant=option)
        for drift in compare_rights(f"SCHEMA {identifier(schema)}", f"schema {schema}", (), [right]):
            yield replace(drift, hint="objects created there can pass for yours, such as tables without policies")


def compare_parameters(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield server settings that PUBLIC or our roles may change, such as the one that disables triggers."""
    found = catalogue.rows(
        f"""
        SELECT p.parname, coalesce(g.rolname, '{PUBLIC}'), a.privilege_type, a.is_grantable
          FROM pg_parameter_acl p CROSS JOIN aclexplode(p.paracl) a LEFT JOIN pg_roles g ON g.oid = a.grantee
         WHERE a.grantee = 0 OR g.rolname = ANY (%s::text[])
        """,
        list(declared.names),
    )
    for parameter, name, what, option in found:
        right = Right(name, what, may_grant=option)
        yield from compare_rights(f"PARAMETER {parameter}", f"parameter {parameter}", (), [right])


def compare_default_privileges(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield excess and missing default privileges on new objects of the migrator and the owners."""
    creators = list(declared.guarded)
    found = catalogue.rows(
        f"""
        SELECT r.rolname, coalesce(n.nspname, ''), d.kind, coalesce(g.rolname, '{PUBLIC}'), a.privilege_type
          FROM pg_roles r
         CROSS JOIN LATERAL (
            SELECT defaclobjtype::text AS kind, defaclnamespace AS namespace, defaclacl AS acl
              FROM pg_default_acl WHERE defaclrole = r.oid
             UNION ALL
            SELECT k, 0, acldefault(k::"char", r.oid) FROM unnest(ARRAY['f', 'T']) AS k
             WHERE NOT EXISTS (SELECT FROM pg_default_acl d
                                WHERE d.defaclrole = r.oid AND d.defaclnamespace = 0 AND d.defaclobjtype = k::"char")
         ) d
         CROSS JOIN aclexplode(d.acl) a
          LEFT JOIN pg_namespace n ON n.oid = d.namespace
          LEFT JOIN pg_roles g ON g.oid = a.grantee
         WHERE r.rolname = ANY (%s::text[]) AND a.grantee <> r.oid
        """,
        creators,
    )
    seen = {(creator, schema, KINDS[kind], grantee, what) for creator, schema, kind, grantee, what in found}
    expected = {(creator, "", KINDS[kind], PUBLIC, what) for creator in creators for kind, what in OF_PUBLIC.items()}
    for each in declared.default_privileges:
        for what in each.privileges:
            if each.grantee is None:
                expected.discard((each.creator, "", each.kind, PUBLIC, what))
            else:
                expected.add((each.creator, SCHEMA, each.kind, each.grantee, what))
    for is_missing, entries in ((False, seen - expected), (True, expected - seen)):
        for creator, schema, kind, grantee, what in sorted(entries):
            within = f" IN SCHEMA {identifier(schema)}" if schema else ""
            do = f"GRANT {what} ON {kind} TO" if is_missing else f"REVOKE {what} ON {kind} FROM"
            yield Drift(
                kind="default privilege",
                where=f"new {kind.lower()} of {creator}{f' in schema {schema}' if schema else ''}, role {grantee}",
                expected=what if is_missing else f"no {what}",
                found="none" if is_missing else what,
                fix=(f"ALTER DEFAULT PRIVILEGES FOR ROLE {identifier(creator)}{within} {do} {role(grantee)}",),
            )
