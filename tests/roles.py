"""Strategies: role names, texts and roles as hostile as PostgreSQL can hold."""

from datetime import UTC, datetime

from hypothesis import strategies as st

from pgrole_controller.core.ddl import NAME_BYTES
from pgrole_controller.core.role import Role, to_microseconds

_HOSTILE = st.sampled_from(
    ["'", '"', "\\", ";", "--", "/*", "$$", "\n", "\t", " ", "%s", "$1", "{x}", "é", "日", "😀", "E'"]
)


def texts() -> st.SearchStrategy[str]:
    """Any text without NUL and without lone surrogates, which UTF-8 cannot say."""
    plain = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=40)
    return st.one_of(plain, st.lists(_HOSTILE, max_size=12).map("".join))


def names() -> st.SearchStrategy[str]:
    """What can be a role's name: 1 to 63 bytes, not pg_*, not a reserved word."""
    return texts().filter(
        lambda name: (
            1 <= len(name.encode()) <= NAME_BYTES and not name.startswith("pg_") and name not in ("public", "none")
        )
    )


def roles(name: st.SearchStrategy[str] | None = None) -> st.SearchStrategy[Role]:
    flag = st.booleans()
    moments = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001 -- bounds are naive
    return st.builds(
        Role,
        name=name or names(),
        login=flag,
        superuser=flag,
        createdb=flag,
        createrole=flag,
        inherit=flag,
        replication=flag,
        bypassrls=flag,
        connection_limit=st.integers(-1, 2**31 - 1),
        valid_until=st.none() | moments.map(to_microseconds),
        comment=st.none() | texts().filter(bool),
    )
