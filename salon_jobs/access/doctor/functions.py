"""Comparison of functions: owner, callers, behaviour and body; also finds others with the same names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from salon_jobs.access.doctor.catalogue import PUBLIC, Catalogue
from salon_jobs.access.doctor.declaration import Declaration
from salon_jobs.access.doctor.drift import Drift, Right, compare_rights
from salon_jobs.access.functions import Behaviour, FunctionAccess
from salon_jobs.access.roles import identifier

_VOLATILITY = {"v": "VOLATILE", "s": "STABLE", "i": "IMMUTABLE"}


def compare_functions(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield functions that are missing or different, and undeclared ones with the same name."""
    expected: dict[int, FunctionAccess] = {}
    for function in declared.functions:
        ((oid,),) = catalogue.rows("SELECT to_regprocedure(%s)::oid::bigint", function.signature)
        if oid is None:
            yield _missing(function, declared)
        else:
            expected[oid] = function
    for oid, schema, name, signature, owner, behaviour, rights in _functions(catalogue, declared.functions):
        if oid not in expected:
            if any((other.schema, other.name) == (schema, name) for other in declared.functions):
                yield Drift(
                    kind="function",
                    where=f"function {signature}",
                    expected="none of this name and these arguments",
                    found=f"one, owned by {owner}",
                    fix=(f"DROP FUNCTION {signature}",),
                )
            continue
        yield from _compare(expected[oid], signature, owner, behaviour, rights, declared)


def _compare(
    function: FunctionAccess,
    signature: str,
    owner: str,
    behaviour: Behaviour,
    rights: set[Right],
    declared: Declaration,
) -> Iterable[Drift]:
    where = f"function {signature}"
    wanted = function.owner or declared.owner
    if owner != wanted:
        fix = (f"ALTER FUNCTION {signature} OWNER TO {identifier(wanted)}",)
        yield Drift(kind="owner", where=where, expected=wanted, found=owner, fix=fix)
    expected, seen = _differing(function.behaviour, behaviour)
    if expected:
        yield Drift(kind="function", where=where, expected=expected, found=seen, fix=(function.definition,))
    given = {right for right in rights if right.grantee not in (owner, wanted)}
    if declared.roles is None:  # who else may call it is up to that user
        given = {right for right in given if right.grantee == PUBLIC}
    callers = {Right(name, "EXECUTE") for name in function.callers}
    yield from compare_rights(f"FUNCTION {signature}", where, callers, given)


def _missing(function: FunctionAccess, declared: Declaration) -> Drift:
    owner = identifier(function.owner or declared.owner)
    schema = identifier(function.schema)
    create, *rights = function.create()
    lend = [f"GRANT USAGE ON SCHEMA {schema} TO {owner}"] if function.owner else []
    fix = (*lend, create, f"ALTER FUNCTION {function.signature} OWNER TO {owner}", *rights)
    return Drift(kind="function", where=f"function {function.signature}", expected="a function", found="none", fix=fix)


def _differing(expected: Behaviour, seen: Behaviour) -> tuple[str, str]:
    """Return the differences, as declared and as found."""
    pairs = [
        *zip(_words(expected), _words(seen), strict=True),
        ("the declared body", "the declared body" if expected.body == seen.body else "another body"),
    ]
    differing = [pair for pair in pairs if pair[0] != pair[1]]
    return ", ".join(pair[0] for pair in differing), ", ".join(pair[1] for pair in differing)


def _words(behaviour: Behaviour) -> tuple[str, ...]:
    return (
        f"LANGUAGE {behaviour.language}",
        f"SECURITY {'DEFINER' if behaviour.is_definer else 'INVOKER'}",
        _VOLATILITY[behaviour.volatility],
        ", ".join(behaviour.settings) or "no settings",
    )


def _functions(catalogue: Catalogue, functions: Iterable[FunctionAccess]) -> list[tuple[Any, ...]]:
    found = catalogue.rows(
        f"""
        SELECT p.oid::bigint, n.nspname, p.proname,
               format('%%I.%%I(%%s)', n.nspname, p.proname, pg_get_function_identity_arguments(p.oid)),
               p.proowner::regrole::name, l.lanname, p.prosecdef, p.provolatile::text, p.proconfig, p.prosrc,
               ARRAY(SELECT coalesce(g.rolname, '{PUBLIC}') || ' ' || a.privilege_type || ' ' || a.is_grantable
                       FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
                       LEFT JOIN pg_roles g ON g.oid = a.grantee)
          FROM pg_proc p
          JOIN pg_namespace n ON n.oid = p.pronamespace
          JOIN pg_language l ON l.oid = p.prolang
         WHERE p.proname = ANY (%s::text[]) AND p.prokind IN ('f', 'p')
         ORDER BY 2, 3, 4
        """,
        sorted({function.name for function in functions}),
    )
    return [
        (
            oid,
            schema,
            name,
            signature,
            owner,
            Behaviour(
                language=language,
                is_definer=is_definer,
                volatility=volatility,
                settings=tuple(settings or ()),
                body=body,
            ),
            set(map(Right.of, rights)),
        )
        for oid, schema, name, signature, owner, language, is_definer, volatility, settings, body, rights in found
    ]
