"""The controller's role as docs/privileges.md creates it, and the SQL that its messages ask a superuser to run."""

import re
from pathlib import Path

from tests.acceptance.world import Database, Json, condition

PAGE = Path(__file__).parents[2] / "docs" / "privileges.md"

#: The documentation's role and its password there.
CONTROLLER_ROLE = "pgrole_controller"
PASSWORD = "change-me"


def documented_sql(heading: str) -> str:
    """Returns the first SQL under a heading of docs/privileges.md."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(heading)}\n.*?^```sql\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    assert found, heading
    return found[1]


def role_sql(version: int) -> str:
    """Returns the SQL that creates the controller's role on a major version."""
    return documented_sql("PostgreSQL 16 and later" if version >= 16 else "PostgreSQL 14 and 15")


def remedies(obj: Json) -> list[str]:
    """Returns the SQL for a superuser in Ready's message, by statement."""
    message = condition(obj, "Ready")["message"]
    parts = re.findall(r" can (?:allow|do) it(?:, in database [^:]*)?: (.*?)(?=\. [A-Z]|$)", message)
    assert parts, message
    return [statement for part in parts for statement in part.split("; ")]


async def follow(database: Database, obj: Json) -> list[str]:
    """Runs, as a superuser, what the message asks for."""
    asked = remedies(obj)
    for statement in asked:
        await database.execute(statement)
    return asked
