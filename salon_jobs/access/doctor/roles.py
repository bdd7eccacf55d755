"""Checks of roles, and of the containers of their objects: the database, its schemas, server parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from salon_jobs.access.declared_objects import PUBLIC, Right, grantee, identifier
from salon_jobs.access.doctor.catalogue import Catalogue, Drift
from salon_jobs.access.doctor.declaration import Declaration
from salon_jobs.access.roles import SCHEMA, alter_defaults, grant_owner

# Abilities of the members of the predefined roles.
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
_AS_GOOD_AS_SUPERUSER: Final = ["pg_execute_server_program", "pg_read_server_files", "pg_write_server_files"]
_SEES_ALL: Final = "it sees and changes the rows of all stores"


def compare_roles(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield roles that are missing or have other attributes."""
    present = {name: words for name, _, words in catalogue.rows("roles", names=list(declared.names))}
    for spec, name in declared.named:
        if name not in present:
            hint = "run python manage.py bootstrap_roles"
            yield Drift("role", f"role {name}", "a role", "none", needs_decision=True, hint=hint)
            continue
        # An owner without BYPASSRLS has policies.
        if wrong := [word for word in spec.attributes if word not in (*present[name], "BYPASSRLS")]:
            found = " ".join(word[2:] if word.startswith("NO") else f"NO{word}" for word in wrong)
            fix = f"ALTER ROLE {identifier(name)} {' '.join(wrong)}"
            yield Drift("role attribute", f"role {name}", " ".join(wrong), found, (fix,))


def compare_one_user(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield attributes and memberships that exempt the one database user from declared row-level security."""
    user = declared.owner
    roles = catalogue.rows("roles", names=[user])
    if not any(access.is_protected for access in declared.tables) or not roles:
        return
    ((_, is_first, attributes),) = roles
    if words := [word for word in ("SUPERUSER", "BYPASSRLS") if word in attributes]:
        expected = " ".join(f"NO{word}" for word in words)
        other = "name an ordinary user in DATABASES, who owns the database, and run python manage.py salon_jobs convert"
        # PostgreSQL refuses to remove SUPERUSER from its first role.
        fix = () if is_first else (f"ALTER ROLE {identifier(user)} {expected}",)
        hint = f"{_SEES_ALL}; {other}" if is_first else f"{_SEES_ALL}; or {other}"
        yield Drift("role attribute", f"role {user}", expected, " ".join(words), fix, True, hint)
    if "SUPERUSER" not in words:
        yield from compare_memberships(catalogue, declared)


def compare_memberships(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield undeclared members of the migrator and of owners, and undeclared memberships of our roles.

    Both ends are checked, so that a role that reaches an owner through other roles shows up at one of them. With one
    database user, a person decides about each of its memberships that exempt it from row-level security.
    """
    one_user, missing = declared.roles.one_user, set(declared.owner_roles)
    for granted, member, grantor, exempts, powers, *options in catalogue.rows(
        "memberships",
        granted=list(declared.guarded),
        members=list(declared.names or (declared.owner,)),
        powers=list(_POWERS),
        exempting=_AS_GOOD_AS_SUPERUSER,
    ):
        by = f" GRANTED BY {identifier(grantor)}" if grantor else ""
        revoke = f"REVOKE {identifier(granted)} FROM {identifier(member)}{by} CASCADE"
        if granted in declared.owner_roles and member == declared.owner:
            missing.discard(granted)
            if options != [False, False, True]:
                words = zip(("ADMIN", "INHERIT", "SET"), options, strict=True)
                found = f"WITH {', '.join(f'{word} {str(on).upper()}' for word, on in words)}, granted by {grantor}"
                expected = f"a member of {granted} WITH ADMIN FALSE, INHERIT FALSE, SET TRUE"
                grant = grant_owner(granted, member, version=catalogue.version)
                yield Drift("membership", f"role {member}", expected, found, (revoke, grant))
        elif exempts or not one_user:
            can = [f"members can {_POWERS[own]}{'' if own == granted else f' (through {own})'}" for own in powers]
            hint = "; ".join(can) or (_SEES_ALL if one_user else "")
            found = f"a member of {granted}, granted by {grantor}"
            yield Drift("membership", f"role {member}", f"not a member of {granted}", found, (revoke,), one_user, hint)
    for granted in sorted(missing):
        grant = grant_owner(granted, declared.owner, version=catalogue.version)
        yield Drift("membership", f"role {declared.owner}", f"a member of {granted}", "none", (grant,))


# The names that ALTER DEFAULT PRIVILEGES has for pg_default_acl.defaclobjtype.
KINDS: Final = {"r": "TABLES", "S": "SEQUENCES", "f": "FUNCTIONS", "T": "TYPES", "n": "SCHEMAS", "L": "LARGE OBJECTS"}
# Built-in privileges of PUBLIC on new objects.
OF_PUBLIC: Final = {"f": "EXECUTE", "T": "USAGE"}


def compare_default_privileges(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield excess and missing default privileges on new objects of the migrator and the owners."""
    creators = list(declared.guarded)
    present = {
        (creator, schema, KINDS[kind], name, privilege)
        for creator, schema, kind, name, privilege in catalogue.rows("default_privileges", creators=creators)
    }
    expected = {(creator, "", KINDS[kind], PUBLIC, what) for creator in creators for kind, what in OF_PUBLIC.items()}
    for each in declared.default_privileges:
        for privilege in each.privileges:
            if each.grantee is None:
                expected.discard((each.creator, "", each.kind, PUBLIC, privilege))
            else:
                expected.add((each.creator, SCHEMA, each.kind, each.grantee, privilege))
    for entry in (*sorted(present - expected), *sorted(expected - present)):
        creator, schema, kind, name, privilege = entry
        where = f"new {kind.lower()} of {creator}{f' in schema {schema}' if schema else ''}, role {name}"
        if entry in expected:
            texts, verb = (privilege, "none"), f"GRANT {privilege} ON {kind} TO {grantee(name)}"
        else:
            texts, verb = (f"no {privilege}", privilege), f"REVOKE {privilege} ON {kind} FROM {grantee(name)}"
        yield Drift("default privilege", where, *texts, (f"{alter_defaults(creator, schema)} {verb}",))


def compare_containers(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield differing owners and privileges of PUBLIC and our roles, and other roles that may create in our schema."""
    ours = {*declared.names, PUBLIC}
    for each in catalogue.objects:
        rights = {right for right in each.rights if right.grantee in ours}
        creating = {right for right in each.rights if right.privilege == "CREATE"}
        of_owner = {right for right in each.rights if right.grantee == declared.owner}
        if each.kind == "DATABASE":
            if each.owner in ours:
                yield from each.compare_owner(declared.owner)
            expected = {Right(name, what) for spec, name in declared.named for what in spec.database_privileges}
            if each.owner == declared.owner:  # it has all of them
                expected = {right for right in expected if right.grantee != each.owner}
            yield from each.compare_rights(expected, rights)
        elif each.kind == "SCHEMA" and each.schema == SCHEMA:
            yield from each.compare_owner(declared.owner)
            expected = {Right(name, what) for spec, name in declared.named for what in spec.schema_privileges}
            yield from each.compare_rights(expected, (rights | creating) - of_owner)
        elif each.kind == "SCHEMA":
            if each.owner in (*declared.runtime, *declared.owner_roles):
                yield from each.compare_owner(declared.owner)
            hint = "objects created there can pass for yours, such as tables without policies"
            yield from each.compare_rights((), (rights & creating) - of_owner, hint=hint)
        elif each.kind == "PARAMETER":  # such as the one that disables triggers
            yield from each.compare_rights((), rights)
