"""Checks of the settings with which the sessions of our roles start, from any source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from salon_jobs.access.declared_objects import identifier
from salon_jobs.access.doctor.catalogue import Catalogue, Drift
from salon_jobs.access.doctor.declaration import Declaration
from salon_jobs.access.policies import DEMAND_GUC, NO_STORE
from salon_jobs.conf import settings as conf


class _Rule(NamedTuple):
    """The only value with which a session may start, and the effect of any other.

    ``refused``: jobs fail with it, or guards do not fire, so that no process starts. ``for_anyone``: dangerous even if
    stored for another role. ``only_stored``: a value that a server sets for all sessions is its administrator's choice.
    """

    value: str
    why: str
    refused: bool = False
    for_anyone: bool = False
    only_stored: bool = False


def _rules() -> Mapping[str, _Rule]:
    return {
        conf.store_guc.lower(): _Rule("", "sessions start in a store", refused=True, for_anyone=True),
        conf.user_guc.lower(): _Rule("", "sessions start as a user", refused=True, for_anyone=True),
        DEMAND_GUC: _Rule("", "sessions without a store get one", refused=True),
        "pgtrigger.ignore": _Rule("", "the triggers it names do not fire", refused=True),
        "row_security": _Rule("on", "queries of protected tables fail", refused=True),
        "session_replication_role": _Rule("origin", "triggers and foreign keys do not fire", refused=True),
        "standard_conforming_strings": _Rule(
            "on", "backslashes in quoted text are escapes, which quoting does not expect", refused=True
        ),
        # A read-only server is not refused but left, until there is a primary.
        "default_transaction_read_only": _Rule("off", "nothing can be written"),
        "search_path": _Rule('"$user", public', "names may resolve to tables without policies, in other schemas"),
        "role": _Rule("none", "sessions act as another role"),
        "session_authorization": _Rule("", "sessions act as another role", only_stored=True),
        "local_preload_libraries": _Rule("", "sessions load the libraries it names", only_stored=True),
        "session_preload_libraries": _Rule("", "sessions load the libraries it names", only_stored=True),
        "dynamic_library_path": _Rule("$libdir", "C functions are loaded from the folders it names", only_stored=True),
    }


def find_refused(catalogue: Catalogue) -> list[str]:
    """Return the settings of this session that keep processes from starting: name, value, source."""
    rules = _rules()
    names = [name for name, rule in rules.items() if rule.refused]
    return [
        f"{name} = {value} (source: {source})"
        for name, value, source in catalogue.rows("session_settings", names=names)
        if value != rules[name].value
    ]


def compare_settings(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield dangerous settings stored for a role, for the database or for a role in it, and those of this session.

    Call it before ``Catalogue.qualify``, which sets some of them.
    """
    rules = _rules()
    ours = {None, declared.owner, *declared.names}
    jobs = declared.relations.get("salon_jobs_job")
    # A single user with its own schema, and no other in the search path.
    own_path = None if jobs is None or not conf.roles.one_user else identifier(jobs.schema).strip('"')
    stored: set[str] = set()
    for name, database, setting, value in catalogue.rows("settings", names=list(rules)):
        rule = rules[setting.lower()]
        if name in (None, catalogue.role):
            stored.add(setting.lower())
        if value == rule.value or not (name in ours or rule.for_anyone):
            continue
        if setting.lower() == "search_path" and value.strip('"') == own_path:
            continue
        if name is None and database is not None:
            whose = f"DATABASE {identifier(database)}"
        else:
            whose = f"ROLE {'ALL' if name is None else identifier(name)}"
            whose += f" IN DATABASE {identifier(database)}" if database is not None else ""
        yield Drift(
            "setting",
            whose.replace('"', "").lower(),
            f"no {setting}",
            f"{setting} = {value}",
            (f"ALTER {whose} RESET {setting}",),
            # Other objects may depend on it, such as extensions in their own schema.
            needs_decision=setting.lower() == "search_path",
            hint=rule.why,
        )
    names = [name for name, rule in rules.items() if not (rule.only_stored or name in stored)]
    for name, value, source in catalogue.rows("session_settings", names=names):
        if (name, value) == (DEMAND_GUC, NO_STORE):  # this session is that of ``migrate``, which sets it
            continue
        if value != rules[name].value and (rules[name].refused or source != "client"):
            hint = f"{rules[name].why}; remove it from {source}, then SELECT pg_reload_conf()"
            yield Drift("setting", "server", f"no {name}", f"{name} = {value}", (), True, hint)
