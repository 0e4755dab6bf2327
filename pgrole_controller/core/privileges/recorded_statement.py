"""What a GRANT, REVOKE or ALTER DEFAULT PRIVILEGES may have changed, as far as its recorded text tells.

Guarantees: any text is accepted, in time proportional to its length. A change that the statement makes is never denied;
one that it does not make is admitted only where the text leaves that open.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

#: A quoted name, or what begins something else. A text's line ends are lost, so no one knows where `--` ends.
_SPECIAL = re.compile(r'"(?:[^"]|"")*"?|--|/\*|\'')
_COMMENT = re.compile(r"/\*|\*/")
#: In case-folded text. PostgreSQL takes every character outside of ASCII for a letter.
_TOKEN = re.compile(r'"(?:[^"]|"")*"?|[a-z_\x80-\U0010ffff][\w$\x80-\U0010ffff]*|[(),]')
_WORD = re.compile(r"\w+")
_ESCAPED = 'u&"'
_IN_SCHEMA = re.compile(r"\bon\s+all\s")
#: Statements that need not name the object or the grantee.
_UNNAMED = re.compile(r"\bon\s+all\s|\balter\s+default\s|\b(?:current_user|current_role|session_user)\b|\bu&\"")
_ALL = "all"
_SHORT = {"temp": "temporary"}
_OF_OPTION = ["grant", "option", "for"]


@dataclass(frozen=True, slots=True)
class ChangedPrivilege:
    """A privilege that was granted or revoked. `column` empty: on the whole object. `option`: only its grant option."""

    privilege: str
    granted: bool
    column: str = ""
    option: bool = False


class _Token(NamedTuple):
    """`text`: case-folded, of a quoted name without its quotes."""

    text: str
    quoted: bool


@dataclass(frozen=True, slots=True)
class RecordedStatement:
    """`text`: case-folded, without comments if these can be told. `words`: if the privileges cannot be told from the
    rest. `names`: everything that may be one, unless these cannot be told. `privileges`: with the columns of each, `""`
    for the whole object; None: they are not in the text, e.g. because it was cut. `option`: GRANT … WITH GRANT OPTION,
    or REVOKE GRANT OPTION FOR. `in_schema`: it is about all objects of schemas. `unnamed`: it need not name the object
    or the grantee.
    """

    text: str
    words: frozenset[str] | None = None
    names: frozenset[str] | None = None
    granted: bool = True
    privileges: Mapping[str, frozenset[str]] | None = None
    option: bool = False
    cascade: bool = False
    in_schema: bool = False
    unnamed: bool = False

    def mentions(self, name: str) -> bool:
        """Whether it contains the name, in whichever case."""
        name = name.casefold()
        if self.names is not None:
            return name in self.names
        return any(True for one in {name, name.replace('"', '""')} for _ in find_name(self.text, one))

    def may_make(self, change: ChangedPrivilege, *, cut: bool = False) -> bool:
        """Whether the statement may have made this change, on whichever object. `cut`: the text is incomplete."""
        name = change.privilege.casefold()
        if self.words is not None:
            spellings = {name, _ALL, *(short for short, long in _SHORT.items() if long == name)}
            return cut or not self.words.isdisjoint(spellings)
        if self.privileges is None:
            return True
        if self.granted is not change.granted or not self._fits_option(change, cut=cut):
            return False
        return any(_reaches(self.privileges.get(one, frozenset()), change) for one in (name, _ALL))

    def _fits_option(self, change: ChangedPrivilege, *, cut: bool) -> bool:
        if change.granted:
            return self.option or not change.option or cut
        # With a grant option go, by CASCADE, the privileges that its holder granted.
        return change.option or not self.option or self.cascade or cut


def _reaches(columns: frozenset[str], change: ChangedPrivilege) -> bool:
    # PostgreSQL revokes the columns' privileges with those of the table.
    if "" in columns and not (change.column and change.granted):
        return True
    name = change.column.casefold()
    return bool(name) and (name in columns or (bool(columns - {""}) and not name.isprintable()))


def find_name(text: str, name: str) -> Iterator[int]:
    """Yields where the name begins as a word. A regular expression for each name would take longer to compile."""
    place = text.find(name)
    while place >= 0 and name:
        around = text[place - 1 : place] + text[place + len(name) : place + len(name) + 1]
        if not any(one == "_" or one.isalnum() for one in around):
            yield place
        place = text.find(name, place + 1)


@lru_cache(maxsize=512)
def read_statement(said: str) -> RecordedStatement:
    statement = _read_statement(said.casefold())
    text = statement.text
    in_schema, unnamed = _IN_SCHEMA.search(text) is not None, _UNNAMED.search(text) is not None
    return replace(statement, in_schema=in_schema, unnamed=unnamed)


def _read_statement(folded: str) -> RecordedStatement:
    if _ESCAPED in folded:
        return RecordedStatement(folded)
    text = _without_comments(folded)
    if text is None:
        return RecordedStatement(folded, words=frozenset(_WORD.findall(folded)))
    tokens = [_token(found[0]) for found in _TOKEN.finditer(text)]
    return replace(_read(text, tokens), names=frozenset(one.text for one in tokens))


def _token(found: str) -> _Token:
    if not found.startswith('"'):
        return _Token(found, quoted=False)
    return _Token(found[1:].removesuffix('"').replace('""', '"'), quoted=True)


def _without_comments(text: str) -> str | None:
    """None: where a comment ends cannot be told."""
    parts, at = list[str](), 0
    while (found := _SPECIAL.search(text, at)) is not None:
        if found[0].startswith('"'):
            parts.append(text[at : found.end()])
            at = found.end()
        elif found[0] == "/*":
            parts += (text[at : found.start()], " ")
            at = _end_of_comment(text, found.end())
        else:
            return None
    return "".join((*parts, text[at:]))


def _end_of_comment(text: str, begins: int) -> int:
    """Comments can contain others. One that was cut reaches to the end."""
    depth = 1
    for found in _COMMENT.finditer(text, begins):
        depth += 1 if found[0] == "/*" else -1
        if depth == 0:
            return found.end()
    return len(text)


def _read(text: str, tokens: Sequence[_Token]) -> RecordedStatement:
    """GRANT and ON are reserved: as names they would be quoted."""
    words = ["" if one.quoted else one.text for one in tokens]
    if "on" not in words:
        return RecordedStatement(text)
    head = words[: words.index("on")]
    option = "grant option" in " ".join(words)
    cascade = "cascade" in words
    granting = [place for place, word in enumerate(head) if word == "grant"]
    if granting and head[granting[0] : granting[0] + 3] != _OF_OPTION:
        granted, begins = True, granting[0] + 1
    elif granting:
        granted, begins = False, granting[0] + 3
    elif "revoke" in head:
        # A column can have this name, too, and in ALTER DEFAULT PRIVILEGES a role.
        granted, begins = False, 1 if head[0] == "revoke" else len(head) - head[::-1].index("revoke")
    else:
        return RecordedStatement(text)
    privileges: dict[str, frozenset[str]] = {}
    for name, columns in _read_privileges(tokens[begins : len(head)]):
        privileges[name] = privileges.get(name, frozenset()) | (columns or {""})
    return RecordedStatement(text, None, None, granted, privileges or None, option, cascade)


def _read_privileges(tokens: Sequence[_Token]) -> Iterator[tuple[str, set[str]]]:
    """Yields each privilege of the list with the columns in parentheses after it."""
    words, columns, inside = list[str](), set[str](), False
    for token in (*tokens, _Token(",", quoted=False)):
        mark = "" if token.quoted else token.text
        if inside:
            if mark == ")":
                inside = False
            elif mark != ",":
                columns.add(token.text)
        elif mark == "(":
            inside = True
        elif mark == ",":
            if words:
                yield _name(words), columns
            words, columns = [], set()
        elif mark != ")":
            words.append(token.text)


def _name(words: Sequence[str]) -> str:
    if words[0] == _ALL:
        return _ALL
    name = " ".join(words)
    return _SHORT.get(name, name)
