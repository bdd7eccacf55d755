"""Names of the relations that statements read or write, as far as their text has them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

# A name with its qualifiers, which come first; without quotes, and folded as the server does.
Name: TypeAlias = tuple[str, ...]

# A quoted name keeps its first quote, so that it is not one of the words below; of a literal only a quote is left.
_WORD: Final = re.compile(
    r"""(?P<skipped> \s+ | --[^\r\n]* )
      | (?P<comment> /\* )
      | (?P<literal> e'(?:[^'\\]|''|\\.)*(?:'|\Z)
                   | (?:[bnx]|u&)?'(?:[^']|'')*(?:'|\Z)
                   | (?P<tag>\$(?:[^\W\d]\w*)?\$).*?(?:(?P=tag)|\Z) )
      | (?:u&)?"(?P<quoted>(?:[^"]|"")*)(?:"|\Z)
      | (?: [^\W\d][\w$]* )
      | \d[\w.]* | .""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_COMMENT_ENDS: Final = re.compile(r"/\*|\*/")
# Words that begin a query, at the start of a statement or after a parenthesis.
_VERBS: Final = frozenset(("select", "insert", "update", "delete", "merge", "with", "table", "values"))
_STATEMENTS: Final = _VERBS | {"copy", "declare"}
# Words that end a list of tables; in MERGE also WHEN, which elsewhere belongs to CASE.
_ENDS_LIST: Final = frozenset(
    ("where", "group", "order", "having", "limit", "offset", "fetch", "union", "intersect", "except", "window", "for")
) | {"returning", "set", "select"}


@dataclass(slots=True)
class _Level:
    """State between two parentheses: ``expects`` is whether a relation's name comes next."""

    verb: str = ""
    is_query: bool = False
    expects: bool = False
    of_target: bool = False  # which is never a common table expression
    in_list: bool = False
    defined: set[str] = field(default_factory=set[str])
    defining: str = ""
    defines: bool = False
    is_recursive: bool = False


def relations_of(text: str) -> Iterator[Name]:
    """Yield the relations that statements name where they read or write rows, without common table expressions.

    Leaves out statements that only define or explain, and the content of literals, such as the body of a function.
    """
    for words in _statements(text):
        yield from _relations(words)


def _words(text: str) -> Iterator[str]:
    """Yield words in lower case, quoted names after a quote, one quote for a literal, and other signs."""
    at = 0
    while found := _WORD.match(text, at):
        at = found.end()
        if found["comment"]:
            depth = 1
            while depth:  # comments nest
                if (edge := _COMMENT_ENDS.search(text, at)) is None:
                    return
                depth, at = depth + (1 if edge[0] == "/*" else -1), edge.end()
        elif found["literal"]:
            yield "'"
        elif found["quoted"] is not None:
            yield '"' + found["quoted"].replace('""', '"')
        elif not found["skipped"]:
            yield found[0].lower()


def _statements(text: str) -> Iterator[list[str]]:
    """Yield the words of each statement that reads or writes rows at once, from its verb on."""
    statement: list[str] = []
    depth = 0
    for word in (*_words(text), ";"):
        if word != ";" or depth > 0:
            depth += (word == "(") - (word == ")")
            statement.append(word)
            continue
        first = next((each for each in statement if each != "("), "")
        if first in _STATEMENTS:
            yield statement
        elif first == "explain":
            start = next((number for number, each in enumerate(statement) if each in _VERBS), 0)
            if {"analyze", "analyse"}.intersection(statement[:start]):  # which runs it
                yield statement[start:]
        elif first == "create":
            if "atomic" in statement:  # the body of a function; its statements follow
                return
            yield from _query_of_new_table(statement)
        statement, depth = [], 0


def _query_of_new_table(statement: list[str]) -> Iterator[list[str]]:
    """Yield the query of CREATE TABLE … AS."""
    depth = 0
    if "table" not in statement[:4]:
        return
    for number, word in enumerate(statement):
        depth += (word == "(") - (word == ")")
        if word == "as" and depth == 0:
            yield statement[number + 1 :]
            return


def _relations(words: list[str]) -> Iterator[Name]:
    levels = [_Level()]
    at = 0
    padded = ["", "", *words, "", ""]
    while at < len(words):
        level, word = levels[-1], words[at]
        twice_before, before, _, after = padded[at : at + 4]
        at += 1
        if word == "(":
            levels.append(_opened(level, after))
        elif word == ")":
            if len(levels) > 1 and levels.pop().is_query:
                _end_definition(levels[-1])
        elif before == ".":
            continue  # a column
        elif level.expects and word in ("only", "lateral"):
            continue
        elif level.expects and (word, after) == ("rows", "from"):  # functions
            level.expects, at = False, at + 1
        elif (level.expects or level.defines) and word not in _VERBS and _is_name(word):
            name = [word]
            while words[at : at + 1] == ["."] and _is_name(padded[at + 3]):
                name.append(words[at + 1])
                at += 2
            parts = tuple(each.removeprefix('"') for each in name)
            if level.defines:
                level.defines, level.defining = False, parts[0]
                if level.is_recursive and word != "recursive":
                    level.defined.add(parts[0])
                elif word == "recursive":
                    level.is_recursive = level.defines = True
                continue
            is_defined = len(parts) == 1 and any(parts[0] in each.defined for each in levels)
            is_function = words[at : at + 1] == ["("]
            if level.of_target or not (is_defined or is_function):
                yield parts
            level.expects = level.of_target = False
        else:
            _follow(level, word, before, twice_before)


def _is_name(word: str) -> bool:
    return word[:1] == '"' or word[:1].isidentifier()


def _opened(level: _Level, first: str) -> _Level:
    """Return the level that a parenthesis opens: a query, joined tables or an expression."""
    is_of_tables = level.expects and first not in _VERBS
    level.expects = False
    return _Level(is_query=first in _VERBS, expects=is_of_tables, in_list=is_of_tables)


def _end_definition(level: _Level) -> None:
    """Register a common table expression by name, once its query has ended."""
    if level.defining:
        level.defined.add(level.defining)
        level.defining = ""


def _follow(level: _Level, word: str, before: str, twice_before: str) -> None:
    """Record what a word tells about the next one."""
    if word == ",":
        level.expects, level.defines = level.in_list, not level.in_list and not level.verb
    elif word == "with" and not level.in_list:
        level.defines = True
    elif word == "from":
        is_comparison = before == "distinct" and twice_before in ("is", "not")
        if level.is_query and level.verb != "copy" and not is_comparison:
            level.expects = True
            level.of_target = before == "delete"
            level.in_list = not level.of_target
    elif word == "join":
        level.expects = True
    elif word == "using":  # in a join it names columns
        if level.verb in ("delete", "merge") and not level.in_list:
            level.expects = level.in_list = True
    elif word in ("into", "copy") or (word == "update" and not level.verb):
        level.expects = level.of_target = True
        level.in_list = False
    elif word in _ENDS_LIST or (word == "when" and level.verb == "merge"):
        level.expects = level.in_list = False
    if word == "table":
        level.expects, level.in_list = True, False
    if word in _STATEMENTS and word != "with":
        level.is_query = True
        level.verb = level.verb or word
        level.defining = ""
