"""The SQL that bootstraps the database roles: one idempotent script per role, also rendered as a file for psql."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from salon_jobs.access.objects import identifier, literal
from salon_jobs.access.roles import SCHEMA, RoleSpec, named_roles
from salon_jobs.conf import Roles
from salon_jobs.db import statements

# Error codes of the guards in ``bootstrap_prelude.sql``.
ROLE_TAKEN: Final = "SJ002"
DATABASE_TAKEN: Final = "SJ003"


def prelude() -> str:
    """Return what every bootstrap begins its transaction with."""
    return statements.load("bootstrap_prelude")


@dataclass(frozen=True, slots=True)
class RoleScript:
    """Statements for one role, in order: its guards, its creation, those for the cluster and for the database."""

    spec: RoleSpec
    name: str
    roles: tuple[tuple[RoleSpec, str], ...]

    @property
    def migrator(self) -> str:
        return next(name for spec, name in self.roles if spec.owns_schema)

    @property
    def _guarded(self) -> str:
        """The roles of which this one must not be a member."""
        is_runtime = not self.spec.owns_schema and not self.spec.owns_functions
        return _names(name for spec, name in self.roles if is_runtime and (spec.owns_schema or spec.owns_functions))

    def guard(self, database: str | None = None) -> str:
        """Return the statement that rejects a role used by another database, with ``ROLE_TAKEN`` and a hint for psql.

        ``database`` is the one to prepare, if it is not the connected one.
        """
        arguments = [literal(self.name), literal(self.spec.attribute_words), self._guarded]
        return _call("guard_role", *arguments, *([] if database is None else [literal(database)]))

    def guard_database(self) -> str:
        """Return the statement that rejects another project's database with ``DATABASE_TAKEN``."""
        return _call("guard_database", _names(name for _, name in self.roles))

    @property
    def create(self) -> str:
        return _call("create_role", literal(self.name))

    @property
    def cluster(self) -> tuple[str, ...]:
        name, words = literal(self.name), self.spec.attribute_words
        if self.spec.owns_functions:
            return (
                _call("alter_role_unless_shared", name, literal(f"{words} PASSWORD NULL")),
                _call("grant_owner", name, literal(self.migrator)),
            )
        alter = _call("alter_role_unless_shared", name, literal(words))
        return (alter,) if self.spec.owns_schema else (alter, _call("revoke_memberships", name, self._guarded))

    @property
    def database(self) -> tuple[str, ...]:
        return tuple(self._database())

    def _database(self) -> Iterable[str]:
        role, spec = identifier(self.name), self.spec
        defaults = [each.statement() for each in spec.default_privileges(self.name, self.migrator)]
        if spec.owns_schema:
            yield f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"
            yield f"ALTER SCHEMA {SCHEMA} OWNER TO {role}"
            yield f"REVOKE ALL ON SCHEMA {SCHEMA} FROM PUBLIC"
            yield _on_database("REVOKE ALL ON", "FROM PUBLIC")
            yield from defaults
        elif not spec.owns_functions:
            yield _on_database("REVOKE ALL ON", f"FROM {role}")
        for setting in spec.settings:
            yield _on_database(f"ALTER ROLE {role} IN", f"SET {setting}")
        for privilege in spec.database_privileges:
            yield _on_database(f"GRANT {privilege} ON", f"TO {role}")
        if spec.owns_schema:
            return
        if not spec.owns_functions:
            yield f"REVOKE ALL ON SCHEMA {SCHEMA} FROM {role}"
        yield f"GRANT USAGE ON SCHEMA {SCHEMA} TO {role}"
        yield from defaults


def build_scripts(roles: Roles, extra_owner_roles: Iterable[str] = ()) -> tuple[RoleScript, ...]:
    """Build the scripts in the order in which they must run.

    Raises ``ConfigurationError`` when an extra owner role has the name of another role.
    """
    named = named_roles(roles, extra_owner_roles)
    return tuple(RoleScript(spec, name, named) for spec, name in named)


def _call(procedure: str, *arguments: str) -> str:
    return f"CALL pg_temp.{procedure}({', '.join(arguments)})"


def _on_database(before: str, after: str) -> str:
    return _call("on_database", literal(before), literal(after))


def _names(names: Iterable[str]) -> str:
    return f"ARRAY[{', '.join(map(literal, names))}]::name[]"


_HEADER: Final = """\
-- Role __name__: __purpose__.
-- Idempotent. Run it as superuser, connected to the application's database, before `migrate`:
--     __environment__psql -d DATABASE -f THIS_FILE
-- A role that other databases use is refused unless you give -v share_roles=on, and is never altered.
"""
_HEADER_OF_LOGIN: Final = """\
-- An existing password is kept unless you give -v change_passwords=on.
-- psql before version 15 reads no environment: give -v __password__=… instead.
"""
_BEGIN: Final = """\
-- `manage.py bootstrap_roles` runs the same statements, and `--print` prints them for other names.
\\set ON_ERROR_STOP on
BEGIN;
"""
_FLAG: Final = """\
\\if :{?__flag__}
\\else
    \\set __flag__ off
\\endif
SET LOCAL salon_jobs.__flag__ = :'__flag__';
"""
_READ_VARIABLE: Final = """\
\\if :{?__password__}
\\else
    \\set __password__ ''
    \\getenv __password__ __variable__
\\endif
SELECT :'__password__' = '' AS password_is_missing \\gset
\\if :password_is_missing
    DO $bootstrap$ BEGIN
        RAISE EXCEPTION '__variable__ is not set: give the password in the environment or by -v __password__=…';
    END $bootstrap$;
\\endif
"""
_SET_VARIABLE: Final = """\
SELECT pg_temp.sets_password(__literal__) AS sets_password \\gset
\\if :sets_password
    ALTER ROLE __identifier__ PASSWORD :'__password__';
\\else
    \\echo 'kept the password of role __echo__; -v change_passwords=on changes it'
\\endif
"""


def render_psql(script: RoleScript) -> str:
    """Render one script as a psql file, to be run by a superuser connected to the application's database."""
    variable, name = script.spec.variable, script.name
    words = {
        "name": name,
        "purpose": script.spec.purpose,
        "environment": "" if variable is None else f"{variable}=… ",
        "literal": literal(name),
        "identifier": identifier(name),
        "echo": name.replace("'", ""),
        "variable": variable or "",
        "password": re.sub(r"\W", "_", (variable or "").lower()),
    }
    has_password = variable is not None
    # The command runs all guards before it makes anything; psql runs a file after another was refused.
    of_migrator = [_call("refuse_role_of_others", literal(script.migrator))] if script.spec.owns_functions else []
    parts = [
        _fill(_HEADER + (_HEADER_OF_LOGIN if has_password else "") + _BEGIN, words),
        f"{prelude()}\n",
        *(_fill(_FLAG, {"flag": flag}) for flag in ("share_roles", "change_passwords")),
        _fill(_READ_VARIABLE, words) if has_password else "",
        "\n-- The cluster\n",
        _lines(*of_migrator, script.guard(), script.guard_database(), script.create),
        _fill(_SET_VARIABLE, words) if has_password else "",
        _lines(*script.cluster),
        "\n-- The database\n",
        _lines(*script.database, "COMMIT"),
    ]
    return "".join(parts)


def _fill(template: str, words: dict[str, str]) -> str:
    return re.sub(r"__(\w+?)__", lambda placeholder: words[placeholder[1]], template)


def _lines(*sql: str) -> str:
    return "".join(f"{statement};\n" for statement in sql)
