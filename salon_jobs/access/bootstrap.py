"""Bootstrap of the database roles: one idempotent script per role, run directly or rendered for psql."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import sql

from salon_jobs.access.roles import ATTRIBUTE_COLUMNS, SCHEMA, RoleSpec, identifier, literal, named_roles
from salon_jobs.conf import Roles
from salon_jobs.core.errors import ConfigurationError, NotReady, RolesTaken

PRELUDE: Final = (
    # Names resolve in pg_catalog only: before the first bootstrap anyone may create objects in public.
    "SET LOCAL search_path = pg_catalog",
    # "Already exists" is expected on a second run.
    "SET LOCAL client_min_messages = warning",
    # Keep passwords out of the server's log, even when a statement fails.
    "SET LOCAL log_statement = 'none'",
    "SET LOCAL log_min_duration_statement = -1",
    "SET LOCAL log_min_error_statement = panic",
    # Two bootstraps at once, in whichever databases of the cluster, wait for each other.
    "LOCK TABLE pg_catalog.pg_authid IN SHARE ROW EXCLUSIVE MODE",
    """CREATE OR REPLACE FUNCTION pg_temp.databases_of(name_of_role name, with_memberships boolean)
RETURNS SETOF name LANGUAGE sql STABLE SET search_path = pg_catalog AS $sql$
    WITH RECURSIVE acting (oid) AS (
        SELECT oid FROM pg_roles WHERE rolname = name_of_role
         UNION
        SELECT m.roleid FROM pg_auth_members AS m JOIN acting ON m.member = acting.oid WHERE with_memberships
    )
    SELECT d.datname FROM pg_database AS d
     WHERE EXISTS (SELECT FROM pg_shdepend AS s JOIN acting ON acting.oid = s.refobjid
                    WHERE s.refclassid = 'pg_authid'::regclass
                      AND (s.dbid = d.oid OR (s.classid = 'pg_database'::regclass AND s.objid = d.oid)))
        OR EXISTS (SELECT FROM pg_db_role_setting AS s JOIN acting ON acting.oid = s.setrole
                    WHERE s.setdatabase = d.oid)
     ORDER BY d.datname
$sql$""",
    """CREATE OR REPLACE FUNCTION pg_temp.other_databases(name_of_role name, database name DEFAULT current_database())
RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog AS $sql$
    SELECT string_agg(used, ', ') FROM pg_temp.databases_of(name_of_role, true) AS used WHERE used <> database
$sql$""",
    """CREATE OR REPLACE FUNCTION pg_temp.sets_password(name_of_role name)
RETURNS boolean LANGUAGE sql STABLE SET search_path = pg_catalog AS $sql$
    SELECT current_setting('salon_jobs.change_passwords', true) IS NOT DISTINCT FROM 'on'
        OR (pg_temp.other_databases(name_of_role) IS NULL
            AND NOT EXISTS (SELECT FROM pg_authid WHERE rolname = name_of_role AND rolpassword IS NOT NULL))
$sql$""",
)
# Error code raised by the guard.
ROLE_TAKEN: Final = "SJ002"
_RENAME: Final = "Choose another name in SALON_JOBS['ROLES']"
_USED_ELSEWHERE: Final = " is already used in another database: "
# The first object id that is not the server's own.
_FIRST_OF_USERS: Final = 16384
_FLAGS: Final = ("share_roles", "change_passwords")


@dataclass(frozen=True, slots=True)
class RoleScript:
    """Statements for one role, in order: its guard, its creation, those for the cluster and for the database."""

    spec: RoleSpec
    name: str
    migrator: str
    guarded: tuple[str, ...]
    create: str
    cluster: tuple[str, ...]
    database: tuple[str, ...]

    def guard(self, database: str | None = None) -> str:
        """Return the statement that rejects a role used by another database, with ``ROLE_TAKEN`` and, for psql, a hint.

        ``database`` is the one to prepare, if it is not the connected one.
        """
        return _guard(self.spec, self.name, self.guarded, database, migrator=self.migrator)


def build_scripts(roles: Roles, extra_owner_roles: Iterable[str] = ()) -> tuple[RoleScript, ...]:
    """Build the scripts in the order in which they must run.

    Raises ``ConfigurationError`` when an extra owner role has the name of another role.
    """
    named = named_roles(roles, extra_owner_roles)
    guarded = tuple(name for spec, name in named if spec.owns_functions or spec.owns_schema)
    return tuple(
        RoleScript(
            spec,
            name,
            roles.migrator,
            guarded,
            _block(
                f"IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {literal(name)}) THEN",
                f"    CREATE ROLE {identifier(name)};",
                "END IF;",
            ),
            tuple(_cluster_statements(spec, name, migrator=roles.migrator, guarded=guarded)),
            tuple(_database_statements(spec, name, migrator=roles.migrator)),
        )
        for spec, name in named
    )


def _guard(spec: RoleSpec, name: str, guarded: Iterable[str], database: str | None, *, migrator: str) -> str:
    of = "pg_catalog.current_database()" if database is None else literal(database)
    is_other = " OR ".join(
        f"{ATTRIBUTE_COLUMNS[word]} IS {'NOT ' if on else ''}TRUE" for word, on in spec.attributes.items()
    )
    also = literal(f"role {name} is also used in ") + " || others || "
    lines = [
        f"IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {literal(name)} AND oid < {_FIRST_OF_USERS}) THEN",
        *_refuse(literal(f"role {name} is the server's own"), f"{_RENAME}."),
        "END IF;",
        # By the command all guards run before anything is made; psql runs a file after another was refused.
        *(_refuse_unless_shared(migrator, of) if spec.owns_functions and database is None else ()),
        "IF others IS NULL THEN",
        "    RETURN;",
        "END IF;",
        *_refuse_unless_shared(name, of),
        f"IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {literal(name)}",
        f"           AND ({is_other})) THEN",
        *_refuse(also + literal(" and would have to be altered"), f"{_RENAME}, or run: {alter_role(spec, name)};"),
        "END IF;",
    ]
    if not spec.owns_functions and not spec.owns_schema:
        lines += [
            "IF EXISTS (",
            *(f"    {line}" for line in _members(name, guarded)),
            ") THEN",
            *_refuse(
                also + literal(" and is a member of the migrator or of an owner of functions"),
                f"{_RENAME}, or run: REVOKE {', '.join(map(identifier, guarded))} FROM {identifier(name)};",
            ),
            "END IF;",
        ]
    return _block(*lines, declare=f"others text := pg_temp.other_databases({literal(name)}, {of});")


def _refuse_unless_shared(name: str, of: str) -> tuple[str, ...]:
    """Reject a role that other databases use and this one does not, unless sharing was asked for."""
    others = f"pg_temp.other_databases({literal(name)}, {of})"
    return (
        "IF pg_catalog.current_setting('salon_jobs.share_roles', true) IS DISTINCT FROM 'on'",
        f"    AND {others} IS NOT NULL",
        f"    AND {of} NOT IN (SELECT pg_temp.databases_of({literal(name)}, false)) THEN",
        *_refuse(
            literal(f"role {name}{_USED_ELSEWHERE}") + f" || {others}", f"{_RENAME}, or share it: -v share_roles=on."
        ),
        "END IF;",
    )


def _refuse(message: str, hint: str) -> tuple[str, ...]:
    return (
        f"    RAISE EXCEPTION USING ERRCODE = {literal(ROLE_TAKEN)}, MESSAGE = {message},",
        f"        HINT = {literal(hint)};",
    )


def _cluster_statements(spec: RoleSpec, name: str, *, migrator: str, guarded: Iterable[str]) -> Iterable[str]:
    if spec.owns_functions:
        yield _if_ours(name, f"{alter_role(spec, name)} PASSWORD NULL;")
        yield _block(
            f"IF pg_temp.other_databases({literal(name)}) IS NOT NULL AND EXISTS (",
            *(f"    {line}" for line in _members(migrator, [name])),
            ") THEN",
            "    RETURN;",
            "END IF;",
            "IF pg_catalog.current_setting('server_version_num')::integer >= 160000 THEN",
            f"    EXECUTE {literal(grant_owner(name, migrator, version=160000))};",
            "ELSE",
            f"    {grant_owner(name, migrator, version=150000)};",
            "END IF;",
        )
        return
    yield _if_ours(name, f"{alter_role(spec, name)};")
    if not spec.owns_schema:
        yield _revoke_memberships(name, guarded)


def _if_ours(name: str, statement: str) -> str:
    return _block(f"IF pg_temp.other_databases({literal(name)}) IS NULL THEN", f"    {statement}", "END IF;")


def alter_role(spec: RoleSpec, name: str) -> str:
    """Return the statement that sets a role's attributes."""
    words = (word if on else f"NO{word}" for word, on in spec.attributes.items())
    return f"ALTER ROLE {identifier(name)} {' '.join(words)}"


def grant_owner(owner: str, migrator: str, *, version: int) -> str:
    """Return the statement that lets the migrator become an owner of functions, but not use its rights implicitly.

    Before PostgreSQL 16 there is no option for that; the migrator's own NOINHERIT ensures it.
    """
    options = " WITH ADMIN FALSE, SET TRUE, INHERIT FALSE" if version >= 160000 else ""
    return f"GRANT {identifier(owner)} TO {identifier(migrator)}{options}"


def _revoke_memberships(name: str, guarded: Iterable[str]) -> str:
    """Revoke a runtime role's membership in the migrator and the owners, whoever granted it."""
    return _block(
        "FOR membership IN",
        *(f"    {line}" for line in _members(name, guarded)),
        "LOOP",
        "    EXECUTE pg_catalog.format('REVOKE %I FROM %I GRANTED BY %I CASCADE',",
        f"        membership.granted, {literal(name)}, membership.grantor);",
        "END LOOP;",
        declare="membership record;",
    )


def _members(name: str, guarded: Iterable[str]) -> tuple[str, ...]:
    return (
        "SELECT granted.rolname AS granted, grantor.rolname AS grantor",
        "FROM pg_catalog.pg_auth_members AS m",
        "JOIN pg_catalog.pg_roles AS granted ON granted.oid = m.roleid",
        "JOIN pg_catalog.pg_roles AS member ON member.oid = m.member",
        "JOIN pg_catalog.pg_roles AS grantor ON grantor.oid = m.grantor",
        f"WHERE member.rolname = {literal(name)}",
        f"  AND granted.rolname IN ({', '.join(literal(each) for each in guarded)})",
    )


def _database_statements(spec: RoleSpec, name: str, *, migrator: str) -> Iterable[str]:
    role = identifier(name)
    defaults = [each.statement() for each in spec.default_privileges(name, migrator)]
    if spec.owns_schema:
        yield f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"
        yield f"ALTER SCHEMA {SCHEMA} OWNER TO {role}"
        yield f"REVOKE ALL ON SCHEMA {SCHEMA} FROM PUBLIC"
        yield _on_database("REVOKE ALL ON DATABASE %I FROM PUBLIC")
        yield from defaults
    elif not spec.owns_functions:
        yield _on_database(f"REVOKE ALL ON DATABASE %I FROM {role}")
    for setting in spec.settings:
        yield _on_database(f"ALTER ROLE {role} IN DATABASE %I SET {setting}")
    for privilege in spec.database_privileges:
        yield _on_database(f"GRANT {privilege} ON DATABASE %I TO {role}")
    if spec.owns_schema:
        return
    if not spec.owns_functions:
        yield f"REVOKE ALL ON SCHEMA {SCHEMA} FROM {role}"
    yield f"GRANT USAGE ON SCHEMA {SCHEMA} TO {role}"
    yield from defaults


def _on_database(statement: str) -> str:
    template = literal(statement.replace("%I", "%1$I"))
    return _block(f"EXECUTE pg_catalog.format({template}, pg_catalog.current_database());")


def _block(*lines: str, declare: str | None = None) -> str:
    head = [f"DECLARE\n    {declare}"] if declare else []
    body = [f"    {line}" for line in lines]
    return "\n".join(["DO $bootstrap$", *head, "BEGIN", *body, "END", "$bootstrap$"])


def render_psql(script: RoleScript) -> str:
    """Render one script as a psql file, to be run by a superuser connected to the application's database."""
    spec = script.spec
    parts = [_header(script), "\\set ON_ERROR_STOP on", "BEGIN;", *(f"{line};" for line in PRELUDE)]
    parts += [_psql_flag(flag) for flag in _FLAGS]
    if spec.variable is not None:
        parts.append(_psql_password(spec.variable))
    parts += ["", "-- The cluster", f"{script.guard()};", f"{script.create};"]
    if spec.variable is not None:
        parts.append(_psql_set_password(script.name, spec.variable))
    parts += [f"{line};" for line in script.cluster]
    parts += ["", "-- The database", *(f"{line};" for line in script.database), "COMMIT;"]
    return "\n".join(parts) + "\n"


def _header(script: RoleScript) -> str:
    variable = script.spec.variable
    lines = [
        f"Role {script.name}: {script.spec.purpose}.",
        "Idempotent. Run it as superuser, connected to the application's database, before `migrate`:",
        f"    {f'{variable}=… ' if variable else ''}psql -d DATABASE -f THIS_FILE",
    ]
    lines += [
        "A role that other databases use is refused unless you give -v share_roles=on, and is never altered.",
        *(["An existing password is kept unless you give -v change_passwords=on."] if variable is not None else []),
    ]
    if variable is not None:
        lines.append(f"psql before version 15 reads no environment: give -v {_psql_name(variable)}=… instead.")
    lines.append("`manage.py bootstrap_roles` runs the same statements, and `--print` prints them for other names.")
    return "\n".join(f"-- {line}" for line in lines)


def _psql_password(variable: str) -> str:
    name = _psql_name(variable)
    refusal = f"{variable} is not set: give the password of the role in the environment or by -v {name}=…"
    return "\n".join(
        [
            f"\\if :{{?{name}}}",
            "\\else",
            f"    \\set {name} ''",
            f"    \\getenv {name} {variable}",
            "\\endif",
            f"SELECT :'{name}' = '' AS password_is_missing \\gset",
            "\\if :password_is_missing",
            f"    DO $bootstrap$ BEGIN RAISE EXCEPTION {literal(refusal)}; END $bootstrap$;",
            "\\endif",
        ]
    )


def _psql_flag(flag: str) -> str:
    return "\n".join(
        [
            f"\\if :{{?{flag}}}",
            "\\else",
            f"    \\set {flag} off",
            "\\endif",
            f"SET LOCAL salon_jobs.{flag} = :'{flag}';",
        ]
    )


def _psql_set_password(name: str, variable: str) -> str:
    kept = f"kept the password of role {name}; -v change_passwords=on changes it".replace("'", "")
    return "\n".join(
        [
            f"SELECT pg_temp.sets_password({literal(name)}) AS sets_password \\gset",
            "\\if :sets_password",
            f"    ALTER ROLE {identifier(name)} PASSWORD :'{_psql_name(variable)}';",
            "\\else",
            f"    \\echo '{kept}'",
            "\\endif",
        ]
    )


def _psql_name(variable: str) -> str:
    return re.sub(r"\W", "_", variable.lower())


Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]


# Called before passwords change, with the roles, and for those used elsewhere the other databases; raises to refuse.
ConfirmPasswords: TypeAlias = Callable[[Sequence[str], Mapping[str, str]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleState:
    """Attributes, password and memberships of an existing role."""

    attributes: tuple[str, ...]
    verifier: str | None
    memberships: tuple[str, ...]

    def differences(self, before: RoleState) -> tuple[str, ...]:
        """Describe what differs from an earlier state."""
        words = [word for word, was in zip(self.attributes, before.attributes, strict=True) if word != was]
        words += ["password"] if self.verifier != before.verifier else []
        words += ["memberships"] if self.memberships != before.memberships else []
        return tuple(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrapped:
    """Roles that were created, kept as they were, or changed, with what changed.

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
    extra_owner_roles: Iterable[str] = (),
    database: str | None = None,
    share_roles: bool = False,
    change_passwords: ConfirmPasswords | None = None,
) -> Bootstrapped:
    """Create or fix the roles, their memberships, grants and default privileges; idempotent.

    ``url`` must log in as a superuser. Works on ``database``, which is created with the migrator as owner if it does
    not exist, or by default on the database of the URL. All of it is one transaction, except the creation of the
    database. ``passwords`` maps role keys (migrator, web, worker, operator) to passwords; they are hashed here and
    never sent.

    A role used by other databases is never altered, and is rejected unless ``share_roles`` is set or this database
    already uses it; the files in ``bootstrap_sql`` explain what that means. Existing passwords are kept unless
    ``change_passwords`` is given, which is first called with the roles whose password would change.

    Raises ``RolesTaken``, ``ConfigurationError`` (a password is missing, the URL is malformed or not a superuser's) or
    ``NotReady`` (the server is unreachable); then nothing has changed.
    """
    scripts = build_scripts(roles, extra_owner_roles)
    _require_passwords(scripts, passwords)
    with connect(url) as connection:
        _require_superuser(connection)
        name = database or connection.info.dbname
        before = _read_roles(connection, scripts)
        others = [script.name for script in scripts if _is_other_password(script, before, passwords)]
        with connection.transaction():
            _begin(connection, scripts, name, share_roles=share_roles, is_named=database is not None)
            shared = _shared(connection, scripts, name)
        if change_passwords is not None and others:
            change_passwords(others, {each: shared[each] for each in others if each in shared})
        created = _ensure_database(connection, scripts, name, share_roles=share_roles)
    changing = others if change_passwords is not None else []
    with connect(url, name) as connection, connection.transaction():
        _begin(connection, scripts, name, share_roles=share_roles)
        for script in scripts:
            _apply(connection, script, passwords, changes_password=script.name in changing)
        after = _read_roles(connection, scripts)
    changed = {each: what for each in before if (what := after[each].differences(before[each]))}
    return Bootstrapped(
        database=name,
        created_database=created,
        made=tuple(each for each in after if each not in before),
        kept=tuple(each for each in before if each not in changed),
        changed=changed,
        shared=shared,
        other_passwords=tuple(script.name for script in scripts if _is_other_password(script, after, passwords)),
    )


def _begin(
    connection: Connection, scripts: Iterable[RoleScript], database: str, *, share_roles: bool, is_named: bool = True
) -> None:
    """Begin a bootstrap's transaction and run every guard. Raises RolesTaken with the findings of all of them.

    ``is_named``: whether somebody chose this database; otherwise it is the one in the URL.
    """
    _execute(connection, *PRELUDE, f"SET LOCAL salon_jobs.share_roles = '{'on' if share_roles else 'off'}'")
    taken: dict[str, list[str]] = {}
    others: list[str] = []
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
                taken.setdefault(used_in, []).append(script.name)
            else:
                others.append(f"{message}. {hint}")
    if taken:
        used = "; ".join(f"{', '.join(names)} (in {where})" for where, names in taken.items())
        wrong_database = "" if is_named else f"If {database} is not the database to prepare, name it: --database NAME. "
        others.insert(
            0,
            f"other databases use these roles, and {database} does not: {used}. {wrong_database}"
            "Choose other names in SALON_JOBS['ROLES'], or share the roles: --share-roles.",
        )
    if others:
        raise RolesTaken(" ".join(others))


def _shared(connection: Connection, scripts: Iterable[RoleScript], database: str) -> dict[str, str]:
    """Return the roles used by other databases, with the names of those databases."""
    names = [script.name for script in scripts]
    query = "SELECT name, pg_temp.other_databases(name, %s) FROM unnest(%s::name[]) AS name"
    return {name: others for name, others in connection.execute(query, [database, names]) if others is not None}


def _read_roles(connection: Connection, scripts: Iterable[RoleScript]) -> dict[str, RoleState]:
    """Return the existing roles, in the order of the scripts."""
    names = [script.name for script in scripts]
    query = sql.SQL(
        """
        SELECT r.rolname, r.rolpassword, ARRAY[{}],
               ARRAY(SELECT m::text FROM pg_catalog.pg_auth_members m WHERE m.member = r.oid ORDER BY 1)
          FROM pg_catalog.pg_authid r WHERE r.rolname = ANY (%s::text[])
         ORDER BY array_position(%s::text[], r.rolname::text)
        """
    ).format(sql.SQL(", ").join(map(sql.Identifier, ATTRIBUTE_COLUMNS.values())))
    found = connection.execute(query, [names, names]).fetchall()
    return {
        name: RoleState(
            attributes=tuple(word if on else f"NO{word}" for word, on in zip(ATTRIBUTE_COLUMNS, flags, strict=True)),
            verifier=verifier,
            memberships=tuple(memberships),
        )
        for name, verifier, flags, memberships in found
    }


def _is_other_password(script: RoleScript, states: Mapping[str, RoleState], passwords: Mapping[str, str]) -> bool:
    """Return whether the role has a password other than the one given."""
    state = states.get(script.name)
    if state is None or state.verifier is None or script.spec.variable is None:
        return False
    return not is_password(passwords[script.spec.key], state.verifier, script.name)


def is_password(password: str, verifier: str, role: str) -> bool:
    """Compare a password with its verifier in ``pg_authid``: SCRAM-SHA-256 (RFC 5803) or MD5."""
    if verifier.startswith("md5"):
        return hashlib.md5(f"{password}{role}".encode(), usedforsecurity=False).hexdigest() == verifier[3:]
    found = re.fullmatch(r"SCRAM-SHA-256\$(\d+):([^$]+)\$([^:]+):.+", verifier)
    if found is None:
        return False
    normalized = unicodedata.normalize("NFKC", password).encode()
    salted = hashlib.pbkdf2_hmac("sha256", normalized, base64.b64decode(found[2]), int(found[1]))
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    return hmac.compare_digest(hashlib.sha256(client_key).digest(), base64.b64decode(found[3]))


def _require_passwords(scripts: Iterable[RoleScript], passwords: Mapping[str, str]) -> None:
    missing = [
        f"{script.spec.variable} (SALON_JOBS['ROLE_PASSWORDS'][{script.spec.key!r}], role {script.name})"
        for script in scripts
        if script.spec.variable is not None and not passwords.get(script.spec.key)
    ]
    if missing:
        raise ConfigurationError(f"the password of a role is missing; set {', '.join(missing)}")


def connect(url: str, database: str | None = None) -> Connection:
    """Connect by ``BOOTSTRAP_URL`` in autocommit, to ``database`` or else the URL's. Raises as ``bootstrap``."""
    try:
        return psycopg.connect(url, autocommit=True, connect_timeout=10, dbname=database)
    except psycopg.ProgrammingError:  # its text contains the URL with the password
        raise ConfigurationError("SALON_JOBS['BOOTSTRAP_URL'] is not a PostgreSQL URL") from None
    except psycopg.OperationalError as error:
        raise NotReady(f"the server of BOOTSTRAP_URL cannot be used: {error}") from error


def _require_superuser(connection: Connection) -> None:
    row = connection.execute(
        "SELECT rolsuper, rolname FROM pg_catalog.pg_roles WHERE rolname = session_user"
    ).fetchone()
    if row is None or not row[0]:
        raise ConfigurationError(
            f"SALON_JOBS['BOOTSTRAP_URL'] logs in as {connection.info.user}, which is not a superuser; "
            "only a superuser can create a role that bypasses row-level security"
        )


def _ensure_database(
    connection: Connection, scripts: Sequence[RoleScript], database: str, *, share_roles: bool
) -> bool:
    """Create the database unless it exists; its owner must exist first. Return whether it was created."""
    if connection.execute("SELECT FROM pg_catalog.pg_database WHERE datname = %s", [database]).fetchone() is not None:
        return False
    migrator = scripts[0]
    with connection.transaction():
        _begin(connection, scripts, database, share_roles=share_roles)
        _execute(connection, migrator.create)
    statement = sql.SQL("CREATE DATABASE {} OWNER {} ENCODING 'UTF8' TEMPLATE template0")
    try:
        connection.execute(statement.format(sql.Identifier(database), sql.Identifier(migrator.name)))
    except psycopg.errors.DuplicateDatabase:  # another bootstrap was faster
        return False
    return True


def _apply(connection: Connection, script: RoleScript, passwords: Mapping[str, str], *, changes_password: bool) -> None:
    _execute(connection, script.create)
    if script.spec.variable is not None and (changes_password or _needs_password(connection, script.name)):
        password = passwords[script.spec.key].encode()
        verifier = connection.pgconn.encrypt_password(password, script.name.encode(), b"scram-sha-256").decode()
        statement = sql.SQL("ALTER ROLE {} PASSWORD {}")
        connection.execute(statement.format(sql.Identifier(script.name), sql.Literal(verifier)))
    _execute(connection, *script.cluster, *script.database)


def _needs_password(connection: Connection, name: str) -> bool:
    row = connection.execute("SELECT pg_temp.sets_password(%s)", [name]).fetchone()
    return row is not None and bool(row[0])


def _execute(connection: Connection, *statements: str) -> None:
    for statement in statements:
        connection.execute(statement.encode())
