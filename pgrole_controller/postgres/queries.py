"""The text of `sql/**.sql`, read once."""

import re
from functools import cache

from pgrole_controller import resources


@cache
def inspect(name: str) -> str:
    """One question, e.g. `inspect("roles")`."""
    return resources.text("sql", "inspect", f"{name}.sql")


@cache
def inspect_without_schema(name: str, *, verifiers: bool) -> str:
    """The same question where schema pgrole is not there; "roles" takes what is remembered of claims as $6 to $8."""
    return _substitute(inspect(name), verifiers=verifiers)


@cache
def poll(*, verifiers: bool) -> str:
    """The digests of all roles; `verifiers`: those of passwords may be read."""
    return _substitute(resources.text("sql", "poll", "digests.sql"), verifiers=verifiers)


@cache
def without_schema(name: str) -> str:
    """One statement of a transaction where schema pgrole is not there."""
    return resources.text("sql", "without_schema", f"{name}.sql").strip()


@cache
def install() -> str:
    """All of schema pgrole, in the order of the files' names, as one script."""
    return "\n".join(resources.texts("sql", "install"))


def _substitute(text: str, *, verifiers: bool) -> str:
    """What is asked of schema pgrole is asked of subqueries, so that there is one text of each question."""
    read = without_schema("verifiers" if verifiers else "no_verifiers")
    claims = without_schema("claim")
    if "$5" not in text:  # a question that nothing is remembered for
        claims = re.sub(r"\$[6-8]", "NULL", claims)
    text = text.replace("pgrole.read_verifiers(NULL)", f"(\n{read}\n)")
    text = re.sub(
        r"pgrole\.read_verifiers\(([^()]+)\)",
        lambda of: f"(\nSELECT x.* FROM (\n{read}\n) AS x WHERE x.role = ANY ({of[1]})\n)",
        text,
    )
    return text.replace("pgrole.claim", f"(\n{claims}\n)")
