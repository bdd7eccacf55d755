"""Declaration of the database roles: the purpose, privileges and bootstrap file of each.

Roles are cluster-level and exist before migrations, since policies and grants name them. Their names in a deployment
are in ``salon_jobs.conf.Roles``; ``access.bootstrap`` turns the declaration into SQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from salon_jobs.access.declared_objects import identifier
from salon_jobs.conf import Roles

DefaultKind: TypeAlias = Literal["TABLES", "SEQUENCES", "FUNCTIONS", "TYPES"]
SCHEMA: Final = "public"
_POWERS: Final = ("SUPERUSER", "CREATEDB", "CREATEROLE", "REPLICATION")


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultPrivileges:
    """Privileges on a creator's new objects: granted to ``grantee`` in ``SCHEMA``, or withheld from PUBLIC (None).

    PUBLIC's built-in privileges can only be removed for the whole database, not per schema.
    """

    creator: str
    kind: DefaultKind
    privileges: tuple[str, ...]
    grantee: str | None = None

    def statement(self) -> str:
        what = f"{', '.join(self.privileges)} ON {self.kind}"
        if self.grantee is None:
            return f"{alter_defaults(self.creator)} REVOKE {what} FROM PUBLIC"
        return f"{alter_defaults(self.creator, SCHEMA)}\n    GRANT {what} TO {identifier(self.grantee)}"


def alter_defaults(creator: str, schema: str = "") -> str:
    """Return the start of an ALTER DEFAULT PRIVILEGES for a creator's new objects, in one schema or all."""
    within = f" IN SCHEMA {identifier(schema)}" if schema else ""
    return f"ALTER DEFAULT PRIVILEGES FOR ROLE {identifier(creator)}{within}"


# For lists of the newest few. With the default of 4, the planner walks the primary key instead of the index that holds
# just the requested rows; if they are all old, it reads every newer row first: 4 s instead of 0.2 s with 5 million.
FEW_ROWS: Final = "random_page_cost = 1.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSpec:
    """One role. No role is ever superuser or may create roles or databases.

    ``key`` is the field of ``conf.Roles`` and the key of ``ROLE_PASSWORDS``; ``variable`` is the environment variable
    of the password, and ``None`` means that the role cannot log in. ``owns_functions`` is for NOLOGIN owners of
    SECURITY DEFINER functions: they bypass RLS, or have policies where BYPASSRLS cannot be granted, and only the
    migrator may become them. ``business_dml`` grants, by default privileges, the rows of the tables that later
    migrations create (under RLS). ``settings`` apply to each of the role's sessions.
    """

    key: str
    purpose: str
    variable: str | None = None
    owns_schema: bool = False
    owns_functions: bool = False
    business_dml: bool = False
    settings: tuple[str, ...] = ()

    def name(self, roles: Roles) -> str:
        """Return its name in the deployment; "" if it has no such role."""
        return getattr(roles, self.key) or ""

    @property
    def attributes(self) -> tuple[str, ...]:
        """Attributes in the form of ALTER ROLE. INHERIT means nothing for roles that cannot log in."""
        owns = self.owns_functions
        inherits = {} if owns else {"INHERIT": not self.owns_schema}
        are_on = {"LOGIN": not owns, **inherits, "BYPASSRLS": owns, **dict.fromkeys(_POWERS, False)}
        return tuple(word if on else f"NO{word}" for word, on in are_on.items())

    @property
    def is_guarded(self) -> bool:
        """Whether no other role may become it."""
        return self.owns_schema or self.owns_functions

    @property
    def database_privileges(self) -> tuple[str, ...]:
        return () if self.owns_functions else ("CONNECT",)

    @property
    def schema_privileges(self) -> tuple[str, ...]:
        return () if self.owns_schema else ("USAGE",)

    def default_privileges(self, name: str, migrator: str) -> tuple[DefaultPrivileges, ...]:
        """Return the role's privileges on new objects, or those that its own new objects withhold from PUBLIC."""
        if self.is_guarded:
            types = (DefaultPrivileges(creator=name, kind="TYPES", privileges=("USAGE",)),) if self.owns_schema else ()
            return (DefaultPrivileges(creator=name, kind="FUNCTIONS", privileges=("EXECUTE",)), *types)
        if not self.business_dml:
            return ()
        rows = ("SELECT", "INSERT", "UPDATE", "DELETE")
        return (
            DefaultPrivileges(creator=migrator, kind="TABLES", privileges=rows, grantee=name),
            DefaultPrivileges(creator=migrator, kind="SEQUENCES", privileges=("USAGE", "SELECT"), grantee=name),
        )


ROLE_SPECS: Final = (
    RoleSpec(
        key="migrator",
        purpose="owns the schema; runs migrations and nothing else",
        variable="MIGRATOR_PASSWORD",
        owns_schema=True,
    ),
    RoleSpec(
        key="worker",
        purpose="worker, scheduler, relay and consumer; business rows under row-level security, owns nothing",
        variable="WORKER_RUNTIME_PASSWORD",
        business_dml=True,
    ),
    RoleSpec(
        key="fan_out_owner",
        purpose="owns the function that lists the stores; nobody logs in as it",
        owns_functions=True,
    ),
    RoleSpec(
        key="web",
        purpose="the web application; business rows under row-level security, owns nothing",
        variable="APP_PASSWORD",
        business_dml=True,
    ),
    RoleSpec(
        key="operator",
        purpose="operators see and change the jobs and messages of all stores; no business table",
        variable="JOBS_OPERATOR_PASSWORD",
        settings=(FEW_ROWS,),
    ),
)


SUPPORT: Final = RoleSpec(
    key="support",
    purpose="support staff read the business rows of all stores; changes nothing",
    variable="SUPPORT_PASSWORD",
)


def extra_owner(name: str) -> RoleSpec:
    """Declare a host application's own NOLOGIN owner of a narrow SECURITY DEFINER function (``extra_owners``)."""
    return RoleSpec(key=name, purpose="owns one narrow function; nobody logs in as it", owns_functions=True)


def named_roles(roles: Roles) -> tuple[tuple[RoleSpec, str], ...]:
    """Return every declared role with its name in the deployment, in order of creation."""
    named = ((spec, spec.name(roles)) for spec in (*ROLE_SPECS, SUPPORT))
    extra = ((extra_owner(name), name) for name in roles.extra_owners)
    return (*((spec, name) for spec, name in named if name), *extra)


def grant_owner(owner: str, migrator: str, *, version: int) -> str:
    """Return the statement that lets the migrator become an owner of functions, but not inherit its rights.

    PostgreSQL 15 has no option for that; there, the migrator's own NOINHERIT ensures it.
    """
    options = " WITH ADMIN FALSE, SET TRUE, INHERIT FALSE" if version >= 160000 else ""
    return f"GRANT {identifier(owner)} TO {identifier(migrator)}{options}"
