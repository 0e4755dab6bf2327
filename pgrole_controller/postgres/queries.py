"""The text of `sql/inspect/*.sql` and `sql/install/*.sql`, read once."""

from functools import cache

from pgrole_controller import resources


@cache
def inspect(name: str) -> str:
    """One question, e.g. `inspect("roles")`."""
    return resources.text("sql", "inspect", f"{name}.sql")


@cache
def install() -> str:
    """All of schema pgrole, in the order of the files' names, as one script."""
    files = sorted(resources.path("sql", "install").glob("*.sql"))
    return "\n".join(file.read_text(encoding="utf-8") for file in files)
