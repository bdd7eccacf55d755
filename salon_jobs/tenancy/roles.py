"""Declares the database roles: what each is for, what it may, and how its bootstrap file is called.

Roles are cluster-level and exist before migrations, whose policies and grants name them. The names of a deployment are
in ``salon_jobs.conf.Roles``; ``tenancy.bootstrap_sql`` turns the declaration into SQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from salon_jobs.conf import Roles


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSpec:
    """Declares one role. No role is ever superuser or may create roles or databases.

    ``key`` is the field of ``conf.Roles`` and the key of ``ROLE_PASSWORDS``; ``variable`` is the environment variable
    of the password, and ``None`` means that nobody can log in as the role. ``owns_functions`` is for NOLOGIN owners
    of SECURITY DEFINER functions: they bypass RLS and only the migrator may become them. ``business_dml`` grants, by
    default privileges, the rows of the tables that later migrations create (under RLS).
    """

    key: str
    purpose: str
    variable: str | None = None
    owns_schema: bool = False
    owns_functions: bool = False
    business_dml: bool = False

    def name(self, roles: Roles) -> str:
        """Return the name of this role in the deployment."""
        name: str = getattr(roles, self.key)
        return name


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
    ),
)


def extra_owner(name: str) -> RoleSpec:
    """Declare a host application's own NOLOGIN owner of a narrow SECURITY DEFINER function (``EXTRA_OWNER_ROLES``)."""
    return RoleSpec(key=name, purpose="owns one narrow function; nobody logs in as it", owns_functions=True)
