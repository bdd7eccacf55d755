"""What is checked about functions: owner, callers, behaviour, body; others with the same names; undeclared ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from salon_jobs.access.doctor.catalogue import Catalogue, CatalogueObject, Drift
from salon_jobs.access.doctor.declaration import Declaration
from salon_jobs.access.objects import PUBLIC, FunctionAccess, grantee, identifier


def compare_functions(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield functions that are missing or different, undeclared ones with the same name, and other loopholes."""
    routines = {each.oid: each for each in catalogue.objects if each.is_routine}
    missing = {function.signature: function for function in declared.functions}
    declared_routines: set[int] = set()
    for signature, oid, words, body in catalogue.rows(
        "functions",
        signatures=list(missing),
        schemas=[function.schema for function in declared.functions],
        names=[function.name for function in declared.functions],
        arguments=[function.arguments for function in declared.functions],
    ):
        routine = routines[oid]
        if signature is None:
            expected, found = "none of this name and these arguments", f"one, owned by {routine.owner}"
            yield Drift("function", routine.where, expected, found, (f"DROP {routine.kind} {routine.name}",))
            continue
        declared_routines.add(oid)
        function = missing.pop(signature)
        yield from _compare(routine, function, words, body, declared)
    for function in missing.values():
        yield _missing(function, declared)
    yield from _find_leakproof(catalogue, routines, declared)
    if declared.roles is not None:
        yield from _find_undeclared(routines.values(), declared_routines, declared)


def _compare(
    routine: CatalogueObject, function: FunctionAccess, words: list[str], body: str, declared: Declaration
) -> Iterable[Drift]:
    owner = function.owner or declared.owner
    yield from routine.compare_owner(owner)
    differing = [pair for pair in zip(function.behaviour, words, strict=True) if pair[0] != pair[1]]
    if body != function.body:
        differing.append(("the declared body", "another body"))
    if differing:
        expected, found = (", ".join(texts) for texts in zip(*differing, strict=True))
        yield Drift("function", routine.where, expected, found, (function.definition,))
    yield from routine.compare_rights(function.rights, declared.covered(routine.rights, {routine.owner, owner}))


def _missing(function: FunctionAccess, declared: Declaration) -> Drift:
    owner = identifier(function.owner or declared.owner)
    create, *grants = function.create()
    usage = [f"GRANT USAGE ON SCHEMA {identifier(function.schema)} TO {owner}"] if function.owner else []
    fix = (*usage, create, f"ALTER FUNCTION {function.signature} OWNER TO {owner}", *grants)
    return Drift("function", f"function {function.signature}", "a function", "none", fix)


def _find_undeclared(
    routines: Iterable[CatalogueObject], declared_routines: Collection[int], declared: Declaration
) -> Iterable[Drift]:
    """Yield undeclared routines of the runtime roles, and SECURITY DEFINER ones of owners who see more than callers."""
    for routine in routines:
        if routine.oid in declared_routines:
            continue
        if routine.owner in declared.runtime:
            yield from routine.compare_owner(declared.owner)
        if not declared.is_loophole(routine):
            continue
        for name in sorted({right.grantee for right in declared.within_reach(routine.rights)}):
            if name != PUBLIC and routine.owner in declared.owner_roles:
                continue  # extra_owners are declared to own such functions
            hint = "or give it to an owner named in ROLES['extra_owners'], or make it INVOKER"
            yield Drift(
                "undeclared function",
                f"{routine.where}, role {name}",
                "no EXECUTE",
                f"EXECUTE of a SECURITY DEFINER function of {routine.owner}",
                (f"REVOKE ALL ON {routine.on} FROM {grantee(name)}",),
                needs_decision=name != PUBLIC,
                hint="" if name == PUBLIC else hint,
            )


def _find_leakproof(
    catalogue: Catalogue, routines: dict[int, CatalogueObject], declared: Declaration
) -> Iterable[Drift]:
    """Yield LEAKPROOF functions that PUBLIC or our roles may call, except those of the server and of extensions."""
    for oid, callers in catalogue.rows("leakproof", roles=list(declared.runtime or (declared.owner,))):
        if oid in routines:
            routine = routines[oid]
            who = PUBLIC if PUBLIC in callers else ", ".join(callers)
            yield Drift(
                "leakproof function",
                routine.where,
                "NOT LEAKPROOF",
                f"LEAKPROOF, owned by {routine.owner}; role {who} may call it",
                (f"ALTER {routine.kind} {routine.name} NOT LEAKPROOF",),
                hint="PostgreSQL may call it on rows of other stores, before their policies are checked",
            )
