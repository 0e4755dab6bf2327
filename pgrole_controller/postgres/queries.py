"""The text of `sql/**.sql`, read once.

Some questions need claims and password verifiers. They name relations `claim` and `verifier`, which a WITH clause in
front of the question defines: `sql/sources` has one definition for each place where claims and verifiers can be read.
"""

from functools import cache

from pgrole_controller import resources


@cache
def inspect(name: str) -> str:
    """One question that needs no other source, e.g. `inspect("references")`."""
    return resources.text("sql", "inspect", f"{name}.sql")


@cache
def inspect_from(name: str, *, claims: str = "", verifiers: str = "") -> str:
    """One question with the sources of its relations `claim` and `verifier`: files in `sql/sources`."""
    return _from_sources(inspect(name), claims, verifiers)


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
    return resources.text("sql", "without_schema", f"{name}.sql").strip()


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
def events(name: str) -> str:
    """`install`: the event triggers of one database; `remove`: removes these and the schema."""
    return resources.text("sql", "events", f"{name}.sql")


def _from_sources(question: str, claims: str, verifiers: str) -> str:
    """NOT MATERIALIZED: the planner must be able to use the indexes of the sources."""
    sources = [
        f"{relation} AS NOT MATERIALIZED (\n{resources.text('sql', 'sources', f'{source}.sql')}\n)"
        for relation, source in (("claim", claims), ("verifier", verifiers))
        if source
    ]
    return f"WITH {', '.join(sources)}\n{question}"
