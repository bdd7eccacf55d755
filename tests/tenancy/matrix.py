"""Declaration of who reaches which rows of which table; ``test_matrix.py`` compares ``MATRIX`` with the database.

A role's entry is a scope and letters. The scope says which rows policies leave it: ``own``, those of the current store
(none without one); ``named``, the same, and an error without one; ``all``, whatever the store. The letters are its
privileges: S(ELECT), I(NSERT), U(PDATE), D(ELETE), T(RUNCATE), in lower case where it has them on some columns alone.
COPY TO needs S, COPY FROM needs I and is refused wherever row-level security applies. A role that is not named is
refused everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

Command = Literal["SELECT", "INSERT", "UPDATE", "DELETE", "COPY TO", "COPY FROM", "TRUNCATE"]
COMMANDS: Final[tuple[Command, ...]] = get_args(Command)
LETTERS: Final[dict[Command, str]] = {
    "SELECT": "S",
    "INSERT": "I",
    "UPDATE": "U",
    "DELETE": "D",
    "COPY TO": "S",
    "COPY FROM": "I",
    "TRUNCATE": "T",
}
Scope = Literal["own", "named", "all"]

# Roles that log in, then the owners of functions, as which only those functions run.
LOGINS: Final = ("app", "worker_runtime", "jobs_operator", "migrator")
OWNERS: Final = ("worker_fanout_owner", "invitation_cleanup_owner")


@dataclass(frozen=True, slots=True)
class Right:
    """Rights of one role on one table."""

    scope: Scope = "own"
    letters: str = ""

    def may(self, command: Command) -> bool:
        """Return whether the role has the privilege, on some columns at least."""
        return LETTERS[command] in self.letters.upper()


@dataclass(frozen=True, slots=True)
class Table:
    """One table: the rights, the column that holds the store, and whether row-level security is on (then forced)."""

    rights: Mapping[str, Right]
    store: str | None = None
    rls: bool = True

    def right(self, role: str) -> Right:
        return self.rights.get(role, Right())


def _table(*, store: str | None = None, rls: bool = True, **entries: str) -> Table:
    rights = {role: entry.split() for role, entry in entries.items() if entry}
    return Table({role: Right(cast("Scope", scope), letters) for role, (scope, letters) in rights.items()}, store, rls)


def _of_stores(*, store: str = "store_id", **others: str) -> Table:
    """Declare a store's own rows."""
    rights = {"app": "own SIUD", "worker_runtime": "own SIUD", "migrator": "named SIUDT"} | others
    return _table(store=store, rls=True, **rights)


def _of_jobs(*, web: str = "", operator: str, worker: str = "all SIUD", store: str | None = None) -> Table:
    """Declare a table of salon_jobs: the worker does everything, for all stores, unless only functions write it."""
    return _table(store=store, app=web, jobs_operator=operator, worker_runtime=worker, migrator="all SIUDT")


def _of_the_system(*, worker: str = "") -> Table:
    """Declare rows of no store, only for the web."""
    return _table(app="all SIUD", worker_runtime=worker, migrator="all SIUDT")


MATRIX: Final[dict[str, Table]] = {
    # Business tables. No role sees another store's rows, not even the tables' owner.
    "store": _of_stores(store="id", worker_fanout_owner="all s"),
    "customer": _of_stores(),
    "customer_note": _of_stores(),
    "reservation": _of_stores(),
    "sale": _of_stores(),
    "daily_sales": _of_stores(),
    "source_file": _of_stores(),
    "parse_task": _of_stores(),
    "operator_invitation": _of_stores(invitation_cleanup_owner="all sD"),
    "membership": _of_stores(worker_runtime=""),
    "operator": _of_the_system(),
    "operator_session": _of_the_system(worker="all sD"),
    # Jobs. The web reaches its current store's; operators those of all stores.
    "salon_jobs_job": _of_jobs(store="store_id", web="own Su", operator="all SUD"),
    "salon_jobs_job_error": _of_jobs(store="store_id", web="own S", operator="all SD"),
    "salon_jobs_job_result": _of_jobs(store="store_id", web="own S", operator="all SD"),
    "salon_jobs_job_progress": _of_jobs(store="store_id", web="own S", operator="all SD"),
    "salon_jobs_job_step": _of_jobs(store="store_id", web="own SD", operator="all SD"),
    "salon_jobs_limit": _of_jobs(operator="all SIUD"),
    "salon_jobs_process": _of_jobs(operator="all S"),
    "salon_jobs_ended_process": _of_jobs(operator="all S"),
    "salon_jobs_cron_entry": _of_jobs(operator="all SU"),
    "salon_jobs_cron_tick": _of_jobs(operator="all S"),
    "salon_jobs_schedule": _of_jobs(store="store_id", web="own S", operator="all SUD"),
    "salon_jobs_schedule_tick": _of_jobs(store="store_id", web="own S", operator="all SD"),
    "salon_jobs_superseded": _of_jobs(operator="all S"),
    "salon_jobs_fan_out": _of_jobs(operator="all S"),
    "salon_jobs_rate": _of_jobs(operator="all SD"),
    "salon_jobs_unique": _of_jobs(operator="all S"),
    "salon_jobs_follow_up": _of_jobs(operator="all SD", worker="all S", store="store_id"),
    "salon_jobs_flow": _of_jobs(operator="all SD", worker="all SUD", web="own S", store="store_id"),
    "salon_jobs_flow_member": _of_jobs(operator="all SD", worker="all SD", web="own S", store="store_id"),
    "salon_jobs_flow_edge": _of_jobs(operator="all SD", worker="all SD", web="own S", store="store_id"),
    "salon_jobs_change": _of_jobs(operator="all S", worker=""),
    "salon_jobs_ordered_key": _of_jobs(operator="all SD", worker="all S", web="own S", store="store_id"),
    "salon_jobs_ordered_job": _of_jobs(operator="all SD", worker="all S", web="own S", store="store_id"),
    "salon_jobs_task_minute": _of_jobs(operator="all S"),
    "salon_jobs_queue_minute": _of_jobs(operator="all S"),
    # Messages. The web emits and skips only through functions.
    "salon_jobs_message": _of_jobs(store="store_id", web="own S", operator="all SIUD"),
    "salon_jobs_blocked_aggregate": _of_jobs(store="store_id", web="own S", operator="all SIUD"),
    "salon_jobs_partition": _of_jobs(operator="all S"),
    "salon_jobs_destination": _of_jobs(operator="all SIU"),
    "salon_jobs_inbox": _of_jobs(operator="all SIUD"),
    "salon_jobs_replay": _of_jobs(operator="all SI"),
    # Users, their sessions and the admin's log: the web's, whatever the store.
    "auth_group": _of_the_system(),
    "auth_group_permissions": _of_the_system(),
    "auth_permission": _of_the_system(),
    "auth_user": _of_the_system(),
    "auth_user_groups": _of_the_system(),
    "auth_user_user_permissions": _of_the_system(),
    "django_admin_log": _of_the_system(),
    "django_content_type": _of_the_system(),
    "django_session": _of_the_system(),
    # The one table without row-level security: Django makes it before any migration could.
    "django_migrations": _table(
        rls=False, app="all S", worker_runtime="all S", jobs_operator="all S", migrator="all SIUDT"
    ),
}
