"""Two questions as one, so that PostgreSQL answers both in one round trip."""

import re
from dataclasses import dataclass

_PARAMETER = re.compile(r"\$(\d+)")


@dataclass(frozen=True, slots=True)
class SingleRow:
    """A question with exactly one row, and its arguments."""

    question: str
    arguments: tuple[object, ...] = ()

    def and_one(self, other: "SingleRow") -> "SingleRow":
        """One row with the columns of both, whose names differ."""
        after = _renumber(other.question, len(self.arguments))
        parts = ("SELECT * FROM (", self.question, ") AS one CROSS JOIN (", after, ") AS other")
        return SingleRow("\n".join(parts), (*self.arguments, *other.arguments))

    def beside(self, question: str, *, parameters: int) -> str:
        """The rows of another question; `parameters`: number of its parameters, which this one's follow. The first row
        has the columns of both; on the others, this one's are NULL. Without rows of the other, its columns are NULL.
        """
        parts = (
            "SELECT * FROM (SELECT 1::bigint AS place, o.* FROM (",
            _renumber(self.question, parameters),
            ") AS o) AS one FULL JOIN (SELECT row_number() OVER () AS place, m.* FROM (",
            question,
            ") AS m) AS many USING (place) ORDER BY place",
        )
        return "\n".join(parts)


def _renumber(question: str, by: int) -> str:
    return _PARAMETER.sub(lambda found: f"${int(found[1]) + by}", question)
