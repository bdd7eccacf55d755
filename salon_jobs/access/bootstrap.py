"""Bootstrap of the database roles: an idempotent script per role, run by the command or written as a file for psql."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import unicodedata
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import psycopg

from salon_jobs.access.declared_objects import identifier, literal
from salon_jobs.access.roles import SCHEMA, RoleSpec, named_roles
from salon_jobs.conf import Roles
from salon_jobs.core.errors import ConfigurationError, ConversionMissing, NotReady, RolesTaken
from salon_jobs.db import statements

# Error codes of the guards in ``bootstrap_prelude.sql``.
ROLE_TAKEN: Final = "SJ002"
DATABASE_TAKEN: Final = "SJ003"
# The value in pg_roles instead of a password, for all but superusers.
_HIDDEN: Final = "********"
_USED_ELSEWHERE: Final = " is already used in another database: "  # the wording of ``bootstrap_prelude.sql``
Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]
# Called before passwords change, with the roles and the other databases that use them; raises an error to refuse.
ConfirmPasswords: TypeAlias = Callable[[Sequence[str], Mapping[str, str]], None]


@dataclass(frozen=True, slots=True)
class RoleScript:
    """Statements for one role, in order: guards, creation, grants."""

    spec: RoleSpec
    name: str
    roles: tuple[tuple[RoleSpec, str], ...]

    @property
    def migrator(self) -> str:
        return next(name for spec, name in self.roles if spec.owns_schema)

    @property
    def _guarded(self) -> str:
        """Roles that must not have this one as a member."""
        return _names(name for spec, name in self.roles if spec.is_guarded and not self.spec.is_guarded)

    def guard(self, database: str | None = None) -> str:
        """Return the statement that rejects a role used by another database, with ``ROLE_TAKEN`` and a hint for psql.

        ``database`` is the one to prepare; None for the connected one.
        """
        arguments = [literal(self.name), literal(" ".join(self.spec.attributes)), self._guarded]
        return _call("guard_role", *arguments, *([] if database is None else [literal(database)]))

    def guard_database(self) -> str:
        """Return the statement that rejects another project's database with ``DATABASE_TAKEN``."""
        return _call("guard_database", _names(name for _, name in self.roles))

    @property
    def make(self) -> str:
        words = [*self.spec.attributes, *(["PASSWORD NULL"] if self.spec.owns_functions else [])]
        return _call("make_role", literal(self.name), literal(" ".join(words)))

    @property
    def grants(self) -> Iterable[str]:
        """The statements for memberships, default privileges, and the role's rights in the database."""
        role, spec = identifier(self.name), self.spec
        if spec.is_guarded:
            yield _call("join_roles", _names([self.name]))
        if spec.owns_schema:
            yield f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"
            yield f"ALTER SCHEMA {SCHEMA} OWNER TO {role}"
            yield f"REVOKE ALL ON SCHEMA {SCHEMA} FROM PUBLIC"
            yield _on_database("REVOKE ALL ON", "FROM PUBLIC")
        elif spec.owns_functions:
            yield _call("grant_owner", literal(self.name), literal(self.migrator))
        else:
            yield _call("revoke_memberships", literal(self.name), self._guarded)
            yield f"REVOKE ALL ON SCHEMA {SCHEMA} FROM {role}"
            yield _on_database("REVOKE ALL ON", f"FROM {role}")
        for privilege in spec.schema_privileges:
            yield f"GRANT {privilege} ON SCHEMA {SCHEMA} TO {role}"
        for privilege in spec.database_privileges:
            yield _on_database(f"GRANT {privilege} ON", f"TO {role}")
        for setting in spec.settings:
            yield _on_database(f"ALTER ROLE {role} IN", f"SET {setting}")
        for each in spec.default_privileges(self.name, self.migrator):
            yield each.statement()


def build_scripts(roles: Roles) -> tuple[RoleScript, ...]:
    """Build the scripts in the order in which they must run."""
    named = named_roles(roles)
    return tuple(RoleScript(spec, name, named) for spec, name in named)


def _call(procedure: str, *arguments: str) -> str:
    return f"CALL pg_temp.{procedure}({', '.join(arguments)})"


def _on_database(before: str, after: str) -> str:
    return _call("on_database", literal(before), literal(after))


def _names(names: Iterable[str]) -> str:
    return f"ARRAY[{', '.join(map(literal, names))}]::name[]"


class RoleState(NamedTuple):
    """Attributes of an existing role, and the other databases that use it."""

    verifier: str | None
    attributes: list[str]
    memberships: list[str]
    others: str | None

    def differences(self, before: RoleState, renewed: bool) -> tuple[str, ...]:
        """Describe the differences from an earlier state; ``renewed``: its password was set."""
        words = [word for word, was in zip(self.attributes, before.attributes, strict=True) if word != was]
        words += ["password"] if renewed or self.verifier != before.verifier else []
        words += ["memberships"] if self.memberships != before.memberships else []
        return tuple(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrapped:
    """Roles that were created, kept, or changed, with the changes.

    ``shared`` maps roles to the other databases that use them. ``other_passwords`` lists the roles that kept a password
    other than the one given.
    """

    database: str
    created_database: bool
    made: tuple[str, ...]
    kept: tuple[str, ...]
    changed: Mapping[str, tuple[str, ...]]
    shared: Mapping[str, str]
    other_passwords: tuple[str, ...]


def bootstrap(
    url: str,
    *,
    roles: Roles,
    passwords: Mapping[str, str],
    database: str | None = None,
    share_roles: bool = False,
    change_passwords: ConfirmPasswords | None = None,
    takes_over: bool = False,
) -> Bootstrapped:
    """Create or fix the roles, their memberships, grants and default privileges; idempotent.

    ``url`` must log in as a superuser, or as the owner of the database with CREATEROLE. ``database`` defaults to that
    of the URL; if it does not exist, it is created, and a superuser gives it to the migrator. Everything else is one
    transaction. ``passwords`` maps role keys (migrator, web, worker, operator) to passwords, which are hashed here and
    never sent. Only a superuser can compare them with the existing ones.

    A role used by other databases is never altered, and is rejected unless ``share_roles`` is set or this database
    already uses it; ``bootstrap_sql/roles.sql`` explains the consequences. Existing passwords are kept unless
    ``change_passwords`` is given, which is first called with the roles that would get another password. With
    ``takes_over``, the database may belong to a role other than ``roles``.

    Raises ``RolesTaken``, ``ConversionMissing`` (the database is another project's), ``ConfigurationError`` (a password
    is missing, the URL is malformed or its role may not do this) or ``NotReady`` (the server is unreachable); then
    nothing has changed.
    """
    scripts = build_scripts(roles)
    if missing := [
        f"{script.spec.variable} (SALON_JOBS['ROLE_PASSWORDS'][{script.spec.key!r}], role {script.name})"
        for script in scripts
        if script.spec.variable is not None and not passwords.get(script.spec.key)
    ]:
        raise ConfigurationError(f"the password of a role is missing; set {', '.join(missing)}")
    with connect(url) as connection:
        if not (is_superuser(connection) or administers(connection)):
            raise ConfigurationError(
                f"SALON_JOBS['BOOTSTRAP_URL'] logs in as {connection.info.user}, which can create no roles; "
                "name a superuser, or a role with CREATEROLE that owns the database"
            )
        name = database or connection.info.dbname
        with connection.transaction():
            _begin(connection, scripts, name, share_roles=share_roles, is_named=database is not None)
            before = _read_roles(connection, scripts, name)
        others = [script.name for script in scripts if _is_other_password(script, before, passwords)]
        shared = {role: state.others for role, state in before.items() if state.others is not None}
        if change_passwords is not None and others:
            change_passwords(others, {each: shared[each] for each in others if each in shared})
        created = _ensure_database(connection, scripts, name, passwords, share_roles=share_roles)
    changing = others if change_passwords is not None else []
    with connect(url, name) as connection, connection.transaction():
        _begin(connection, scripts, name, share_roles=share_roles)
        if not takes_over:
            _guard_database(connection, scripts)
        for script in scripts:
            _make_role(connection, script, passwords, changes_password=script.name in changing)
            _execute(connection, *script.grants)
        _execute(connection, _call("leave_roles"))
        after = _read_roles(connection, scripts, name)
    changed = {each: what for each in before if (what := after[each].differences(before[each], each in changing))}
    return Bootstrapped(
        database=name,
        created_database=created,
        made=tuple(each for each in after if each not in before),
        kept=tuple(each for each in before if each not in changed),
        changed=changed,
        shared=shared,
        other_passwords=tuple(
            script.name
            for script in scripts
            if _is_other_password(script, after, passwords) and after[script.name].verifier != _HIDDEN
        ),
    )


def _begin(
    connection: Connection, scripts: Iterable[RoleScript], database: str, *, share_roles: bool, is_named: bool = True
) -> None:
    """Begin a bootstrap's transaction and run every guard. Raises RolesTaken with the findings of all of them.

    ``is_named``: the caller chose this database; otherwise it is the one in the URL.
    """
    prelude = statements.load("bootstrap_prelude")
    _execute(connection, prelude, f"SET LOCAL salon_jobs.share_roles = '{'on' if share_roles else 'off'}'")
    by_databases: dict[str, list[str]] = {}
    refusals: list[str] = []
    for script in scripts:
        try:
            with connection.transaction():
                _execute(connection, script.guard(database))
        except psycopg.Error as error:
            if error.sqlstate != ROLE_TAKEN:
                raise
            message, hint = error.diag.message_primary or "", error.diag.message_hint or ""
            used_in = message.removeprefix(f"role {script.name}{_USED_ELSEWHERE}")
            if used_in != message:
                by_databases.setdefault(used_in, []).append(script.name)
            else:
                refusals.append(f"{message}. {hint}")
    if by_databases:
        used = "; ".join(f"{', '.join(names)} (in {where})" for where, names in by_databases.items())
        wrong_database = "" if is_named else f"If {database} is not the database to prepare, name it: --database NAME. "
        refusals.insert(
            0,
            f"other databases use these roles, and {database} does not: {used}. {wrong_database}"
            "Choose other names in SALON_JOBS['ROLES'], or share the roles: --share-roles.",
        )
    if refusals:
        raise RolesTaken(" ".join(refusals))


def _guard_database(connection: Connection, scripts: Sequence[RoleScript]) -> None:
    """Refuse a database that belongs to another project. Raises ConversionMissing."""
    try:
        _execute(connection, scripts[0].guard_database())
    except psycopg.Error as error:
        if error.sqlstate != DATABASE_TAKEN:
            raise
        raise ConversionMissing(
            f"{error.diag.message_primary} in SALON_JOBS['ROLES']. If it is not the database to prepare, name that "
            "one: --database NAME. To hand it over to the roles, run python manage.py salon_jobs convert"
        ) from error


def _read_roles(connection: Connection, scripts: Iterable[RoleScript], database: str) -> dict[str, RoleState]:
    parameters = {"names": [script.name for script in scripts], "database": database}
    rows = connection.execute(statements.load("bootstrap_roles").encode(), parameters)
    return {name: RoleState(*state) for name, *state in rows}


def _is_other_password(script: RoleScript, states: Mapping[str, RoleState], passwords: Mapping[str, str]) -> bool:
    """Return whether the role's password differs from the given one, or may differ."""
    state = states.get(script.name)
    if state is None or state.verifier is None or script.spec.variable is None:
        return False
    return not is_password(passwords[script.spec.key], state.verifier, script.name)


def is_password(password: str, verifier: str, role: str) -> bool:
    """Compare a password with its verifier in ``pg_authid``: SCRAM-SHA-256 (RFC 5803) or MD5."""
    if verifier.startswith("md5"):
        return hashlib.md5(f"{password}{role}".encode(), usedforsecurity=False).hexdigest() == verifier[3:]
    scram = re.fullmatch(r"SCRAM-SHA-256\$(\d+):([^$]+)\$([^:]+):.+", verifier)
    if scram is None:
        return False
    normalized = unicodedata.normalize("NFKC", password).encode()
    salted = hashlib.pbkdf2_hmac("sha256", normalized, base64.b64decode(scram[2]), int(scram[1]))
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    return hmac.compare_digest(hashlib.sha256(client_key).digest(), base64.b64decode(scram[3]))


def connect(url: str, database: str | None = None) -> Connection:
    """Connect to ``BOOTSTRAP_URL`` in autocommit, to ``database`` or the URL's. Raises the errors of ``bootstrap``."""
    try:
        return psycopg.connect(url, autocommit=True, connect_timeout=10, dbname=database)
    except psycopg.ProgrammingError:  # its text contains the URL with the password
        raise ConfigurationError("SALON_JOBS['BOOTSTRAP_URL'] is not a PostgreSQL URL") from None
    except psycopg.OperationalError as error:
        raise NotReady(f"the server of BOOTSTRAP_URL cannot be used: {error}") from error


def _make_role(
    connection: Connection, script: RoleScript, passwords: Mapping[str, str], *, changes_password: bool = False
) -> None:
    """Create or fix a role and its password in one transaction: another bootstrap may use the role right after it."""
    ((sets_password,),) = connection.execute("SELECT pg_temp.sets_password(%s)", [script.name]).fetchall()
    _execute(connection, script.make)
    if script.spec.variable is not None and (sets_password or changes_password):
        password, role = passwords[script.spec.key].encode(), script.name.encode()
        verifier = connection.pgconn.encrypt_password(password, role, b"scram-sha-256").decode()
        _execute(connection, f"ALTER ROLE {identifier(script.name)} PASSWORD {literal(verifier)}")


def _ensure_database(
    connection: Connection,
    scripts: Sequence[RoleScript],
    database: str,
    passwords: Mapping[str, str],
    *,
    share_roles: bool,
) -> bool:
    """Create the database unless it exists, as a superuser with its owner; return whether it was created."""
    if connection.execute("SELECT FROM pg_catalog.pg_database WHERE datname = %s", [database]).fetchone() is not None:
        return False
    migrator, owner = scripts[0], ""
    if is_superuser(connection):
        with connection.transaction():
            _begin(connection, scripts, database, share_roles=share_roles)
            _make_role(connection, migrator, passwords)
        owner = f" OWNER {identifier(migrator.name)}"
    try:
        _execute(connection, f"CREATE DATABASE {identifier(database)}{owner} ENCODING 'UTF8' TEMPLATE template0")
    except psycopg.errors.DuplicateDatabase:  # another bootstrap was faster
        return False
    return True


def _execute(connection: Connection, *texts: str) -> None:
    for statement in texts:
        try:
            connection.execute(statement.encode())
        except psycopg.errors.InsufficientPrivilege as error:
            why = ": ".join(filter(None, (error.diag.message_primary, error.diag.message_detail)))
            raise ConfigurationError(f"SALON_JOBS['BOOTSTRAP_URL'] logs in as {connection.info.user}: {why}") from error


def is_superuser(connection: psycopg.Connection[Any]) -> bool:
    return connection.info.parameter_status("is_superuser") == "on"


def administers(connection: psycopg.Connection[Any]) -> bool:
    """Return whether the role is not a superuser but may create roles, and so make itself a member of them."""
    query = "SELECT rolcreaterole AND NOT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user"
    ((does,),) = connection.execute(query).fetchall()
    return bool(does)


@contextmanager
def as_member(connection: psycopg.Connection[Any], names: Iterable[str]) -> Generator[None]:
    """Inside a transaction, let a role that administers these roles act as each of them."""
    if not administers(connection):
        yield
        return
    _execute(connection, statements.load("membership"), _call("join_roles", _names(names)))
    yield
    _execute(connection, _call("leave_roles"))


_HEADER: Final = """\
-- The database roles __names__.
-- Idempotent, in one transaction. Run it before `migrate`, connected to the application's database, as superuser or as
-- its owner with CREATEROLE. Unless a superuser runs it, passwords are in the server's log if that logs statements:
--     __environment__psql -d DATABASE -f THIS_FILE
-- A role that other databases use is refused unless you give -v share_roles=on, and is never altered.
-- An existing password is kept unless you give -v change_passwords=on.
-- psql before version 15 cannot read the environment: give -v migrator_password=… and so on instead.
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
CALL pg_temp.require_password('__variable__', '__password__', :'__password__' = '');
"""
_SET_VARIABLE: Final = """\
\\if :sets_password
    ALTER ROLE __identifier__ PASSWORD :'__password__';
\\else
    \\echo 'kept the password of role __echo__; -v change_passwords=on changes it'
\\endif
"""


def render_psql(scripts: Sequence[RoleScript]) -> str:
    """Render the scripts as one file for psql, connected to the application's database."""
    variables = [script.spec.variable for script in scripts if script.spec.variable is not None]
    parts = [
        _fill(
            _HEADER,
            {
                "names": ", ".join(script.name for script in scripts),
                "environment": "".join(f"{variable}=… " for variable in variables),
            },
        ),
        f"{statements.load('bootstrap_prelude')}\n",
        *(_fill(_FLAG, {"flag": flag}) for flag in ("share_roles", "change_passwords")),
        *(_fill(_READ_VARIABLE, {"variable": each, "password": _psql_variable(each)}) for each in variables),
        "\n",
        _lines(*(script.guard() for script in scripts), scripts[0].guard_database()),
    ]
    for script in scripts:
        name, variable = script.name, script.spec.variable
        parts.append(f"\n-- Role {name}: {script.spec.purpose}.\n")
        if variable is None:
            parts.append(_lines(script.make))
        else:
            sets = f"SELECT pg_temp.sets_password({literal(name)}) AS sets_password \\gset\n"
            parts += [sets, _lines(script.make)]
            words = {"identifier": identifier(name), "echo": name.replace("'", "")}
            parts.append(_fill(_SET_VARIABLE, {**words, "password": _psql_variable(variable)}))
        parts.append(_lines(*script.grants))
    return "".join([*parts, f"\n{_lines(_call('leave_roles'))}COMMIT;\n"])


def _psql_variable(variable: str) -> str:
    return re.sub(r"\W", "_", variable.lower())


def _fill(template: str, words: dict[str, str]) -> str:
    return re.sub(r"__(\w+?)__", lambda placeholder: words[placeholder[1]], template)


def _lines(*sql: str) -> str:
    return "".join(f"{statement};\n" for statement in sql)
