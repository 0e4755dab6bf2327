"""The text of `sql/**.sql`, read once.

Some questions need claims and password verifiers. They name relations `claim` and `verifier`, which a WITH clause in
front of the question defines: `sql/sources` has one definition for each place where claims and verifiers can be read.
"""

import re
from functools import cache

from pgrole_controller import resources

#: A text that a query sends as bytes; within it, parentheses are nested once at most.
_SENT = re.compile(r"\btextsend\(((?:[^()]|\([^()]*\))*)\)")

#: First in each script for an administrator. The owner of a database can set what names mean for everyone who connects
#: to it. For the whole session, since what SET LOCAL sets ends with its transaction.
SCRIPT_SETTINGS = (
    "SET client_encoding = 'UTF8';",
    "SET search_path = pg_catalog, pg_temp;",
    "SET standard_conforming_strings = on;",
)


@cache
def inspect(name: str) -> str:
    """One question that needs no other source, e.g. `inspect("references")`."""
    return resources.text("sql", "inspect", f"{name}.sql")


@cache
def inspect_from(name: str, *, claims: str = "", verifiers: str = "") -> str:
    """One question with the sources of its relations `claim` and `verifier`: files in `sql/sources`."""
    return _from_sources(inspect(name), claims, verifiers)


@cache
def guard() -> str:
    """Verifies that schema pgrole can be trusted: one statement, the first of a transaction."""
    return _with_question(inspect("guard"), "usual_schema")


@cache
def prepare_usual_guard() -> str:
    """Prepares `pgrole_guard`, as `guard` in the usual case: one statement."""
    return _with_question(inspect("usual_guard"), "usual_schema")


def verifier_source(*, readable: bool) -> str:
    """The source of verifiers without schema pgrole; `readable`: the controller's role may read them."""
    return "verifiers" if readable else "no_verifiers"


@cache
def poll(*, verifiers: bool) -> str:
    """The digests of all roles; `verifiers`: the controller's role may read password verifiers."""
    return _from_sources(resources.text("sql", "poll", "digests.sql"), "", verifier_source(readable=verifiers))


@cache
def without_schema(name: str) -> str:
    """One statement of a transaction in a database without schema pgrole."""
    return _with_question(resources.text("sql", "without_schema", f"{name}.sql"), "suspended")


@cache
def privileges(name: str, *, objects: str = "", raw: bool = False) -> str:
    """One question about the privileges of a database. `objects`: the source of its relation `object`, if it has one:
    a file in `sql/privileges/sources`. `raw`: the database has encoding SQL_ASCII, where textsend refuses names that
    are not UTF-8.
    """
    question = resources.text("sql", "privileges", f"{name}.sql")
    if objects:
        source = resources.text("sql", "privileges", "sources", f"{objects}.sql")
        question = f"WITH object AS NOT MATERIALIZED (\n{source}\n)\n{question}"
    return _SENT.sub(r"convert_to(\1, 'SQL_ASCII')", question) if raw else question


@cache
def access(name: str, *, raw: bool = False) -> str:
    """One question about who may use what. `raw`: as in `privileges`."""
    question = resources.text("sql", "access", f"{name}.sql")
    return _SENT.sub(r"convert_to(\1, 'SQL_ASCII')", question) if raw else question


@cache
def install() -> str:
    """All of schema pgrole in the home database as one script, in the order of the file names in both folders."""
    return "\n".join(text for _, text in sorted(_home_only() + _every_database()))


@cache
def install_database() -> str:
    """What each database with managed privileges has, as one script; without the event triggers."""
    return "\n".join(text for _, text in _every_database())


def _home_only() -> list[tuple[str, str]]:
    return resources.named_texts("sql", "install")


def _every_database() -> list[tuple[str, str]]:
    return resources.named_texts("sql", "database")


@cache
def install_event_triggers() -> str:
    """The event triggers of one database: one statement."""
    return resources.text("sql", "event_triggers", "install.sql")


@cache
def remove() -> str:
    """Removes everything that is installed in one database: one statement."""
    return resources.text("sql", "remove", "remove.sql")


def _with_question(statement: str, name: str) -> str:
    """A question of sql/inspect takes the place of the relation that has its name."""
    return statement.strip().replace(f"FROM {name} AS", f"FROM (\n{inspect(name)}\n) AS")


def _from_sources(question: str, claims: str, verifiers: str) -> str:
    """NOT MATERIALIZED: the planner must be able to use the indexes of the sources."""
    sources = [
        f"{relation} AS NOT MATERIALIZED (\n{resources.text('sql', 'sources', f'{source}.sql')}\n)"
        for relation, source in (("claim", claims), ("verifier", verifiers))
        if source
    ]
    return f"WITH {', '.join(sources)}\n{question}"
