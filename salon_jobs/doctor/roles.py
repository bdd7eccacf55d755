"""Compares roles: their attributes, their memberships, and what the server sets for their sessions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from salon_jobs.conf import settings as conf
from salon_jobs.doctor.catalogue import Catalogue
from salon_jobs.doctor.declaration import Declaration
from salon_jobs.doctor.drift import Drift
from salon_jobs.tenancy.bootstrap_sql import alter_role, grant_owner
from salon_jobs.tenancy.roles import identifier

_COLUMNS: Final[tuple[str, ...]] = (
    "LOGIN",
    "INHERIT",
    "BYPASSRLS",
    "SUPERUSER",
    "CREATEDB",
    "CREATEROLE",
    "REPLICATION",
)


def compare_roles(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield roles that are missing or have other attributes."""
    found: dict[str, dict[str, bool]] = {
        name: dict(zip(_COLUMNS, attributes, strict=True))
        for name, *attributes in catalogue.rows(
            "SELECT rolname, rolcanlogin, rolinherit, rolbypassrls, rolsuper, rolcreatedb, rolcreaterole,"
            " rolreplication FROM pg_roles WHERE rolname = ANY (%s::text[])",
            list(declared.names),
        )
    }
    for spec, name in declared.named:
        if name not in found:
            yield Drift(
                kind="role", where=f"role {name}", expected="a role", seen="none", mend=(), is_decision=True,
                hint="run python manage.py bootstrap_roles",
            )  # fmt: skip
            continue
        wrong = {word: on for word, on in spec.attributes.items() if found[name][word] != on}
        if wrong:
            yield Drift(
                kind="role attribute", where=f"role {name}",
                expected=" ".join(word if on else f"NO{word}" for word, on in wrong.items()),
                seen=" ".join(f"NO{word}" if on else word for word, on in wrong.items()),
                mend=(alter_role(spec, name),),
            )  # fmt: skip


def compare_memberships(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield members of the migrator and of owners, and what our roles are members of, that nobody declared.

    Both ends are looked at, so that whoever reaches an owner through roles between is seen at one of them.
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
        list(declared.guarded), list(declared.names),
    )  # fmt: skip
    owners = declared.owner_roles
    held: set[str] = set()
    for granted, member, grantor, *flags in found:
        revoke = f"REVOKE {identifier(granted)} FROM {identifier(member)}"
        revoke += f" GRANTED BY {identifier(grantor)} CASCADE" if grantor else " CASCADE"
        if granted not in owners or member != declared.owner:
            yield Drift(
                kind="membership", where=f"role {member}", expected=f"not a member of {granted}",
                seen=f"a member of {granted}, granted by {grantor}", mend=(revoke,),
            )  # fmt: skip
        elif flags != [False, False, True]:
            held.add(granted)
            said = (f"{word} {str(on).upper()}" for word, on in zip(("ADMIN", "INHERIT", "SET"), flags, strict=True))
            yield Drift(
                kind="membership", where=f"role {member}",
                expected=f"a member of {granted} WITH ADMIN FALSE, INHERIT FALSE, SET TRUE",
                seen=f"WITH {', '.join(said)}, granted by {grantor}",
                mend=(revoke, grant_owner(granted, declared.owner, version=catalogue.version)),
            )  # fmt: skip
        else:
            held.add(granted)
    for granted in owners:
        if granted not in held:
            yield Drift(
                kind="membership", where=f"role {declared.owner}", expected=f"a member of {granted}", seen="none",
                mend=(grant_owner(granted, declared.owner, version=catalogue.version),),
            )  # fmt: skip


def compare_settings(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield what the server sets by itself, for a role or the database, and no session may begin with.

    A store or a user, as which it would work; and, for our roles, what switches triggers and foreign keys off.
    """
    found = catalogue.rows(
        """
        SELECT r.rolname, d.datname, split_part(setting, '=', 1), substr(setting, strpos(setting, '=') + 1)
          FROM pg_db_role_setting s
         CROSS JOIN unnest(s.setconfig) AS setting
          LEFT JOIN pg_roles r ON r.oid = s.setrole
          LEFT JOIN pg_database d ON d.oid = s.setdatabase
         WHERE coalesce(d.datname, %(database)s) = %(database)s
           AND (lower(split_part(setting, '=', 1)) = ANY (%(identity)s::text[])
                OR (lower(split_part(setting, '=', 1)) = 'session_replication_role'
                    AND coalesce(r.rolname = ANY (%(roles)s::text[]), true)))
        """,
        database=catalogue.database, identity=[declared.store_guc.lower(), conf.user_guc.lower()],
        roles=[*declared.names, declared.owner],
    )  # fmt: skip
    for role, database, setting, value in found:
        if role is None and database is not None:
            whose = f"DATABASE {identifier(database)}"
        else:
            whose = f"ROLE {'ALL' if role is None else identifier(role)}"
            whose += f" IN DATABASE {identifier(database)}" if database is not None else ""
        yield Drift(
            kind="setting", where=whose.replace('"', "").lower(), expected=f"no {setting}", seen=f"{setting} = {value}",
            mend=(f"ALTER {whose} RESET {setting}",),
        )  # fmt: skip
