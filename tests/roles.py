"""Hypothesis strategies: role names, texts and roles, as hostile as PostgreSQL can store."""

from datetime import UTC, datetime

from hypothesis import strategies as st

from pgrole_controller.core.ddl import NAME_BYTES
from pgrole_controller.core.parameters import Parameters, canonical, join
from pgrole_controller.core.role import Membership, Password, Role, to_microseconds
from pgrole_controller.core.scram import make_verifier

_HOSTILE = st.sampled_from(
    ["'", '"', "\\", ";", "--", "/*", "$$", "\n", "\t", " ", "%s", "$1", "{x}", "é", "日", "😀", "E'"]
)


def texts() -> st.SearchStrategy[str]:
    """Any text without NUL and lone surrogates, which UTF-8 cannot encode."""
    plain = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=40)
    return st.one_of(plain, st.lists(_HOSTILE, max_size=12).map("".join))


def names() -> st.SearchStrategy[str]:
    """Valid role names: 1 to 63 bytes, not pg_*, not a reserved word."""
    return texts().filter(
        lambda name: (
            1 <= len(name.encode()) <= NAME_BYTES and not name.startswith("pg_") and name not in ("public", "none")
        )
    )


GROUPS = ("group one", 'group "two"', "group'three")
_PARAMETERS = {
    "statement_timeout": st.sampled_from(["0", "30s", "5min"]),
    "search_path": st.lists(names(), max_size=3).map(join),
    "application_name": texts(),
    "app.tenant": texts(),
    "work_mem": st.sampled_from(["64MB", "1GB"]),
}


def memberships() -> st.SearchStrategy[tuple[Membership, ...]]:
    """Memberships in any of GROUPS, with any options."""
    flag = st.booleans()
    one = st.builds(Membership, st.sampled_from(GROUPS), flag, flag, flag)
    return st.lists(one, unique_by=lambda membership: membership.role).map(
        lambda some: tuple(sorted(some, key=lambda membership: membership.role))
    )


#: Hashed once. Includes a clear text with special characters, the shortest salt, and another iteration count.
PASSWORDS = tuple(
    Password(verifier.digest, verifier)
    for verifier in (
        make_verifier("plain", b"0123456789abcdef", 4096),
        make_verifier('it\'s \\ "$$" 日', b"fedcba9876543210", 4096),
        make_verifier("plain", b"s", 5000),
    )
)


def passwords() -> st.SearchStrategy[Password | None]:
    """None, or any of PASSWORDS."""
    return st.none() | st.sampled_from(PASSWORDS)


def parameters() -> st.SearchStrategy[Parameters]:
    return st.fixed_dictionaries({}, optional=_PARAMETERS).map(canonical)


def roles(name: st.SearchStrategy[str] | None = None) -> st.SearchStrategy[Role]:
    flag = st.booleans()
    # Hypothesis requires naive bounds.
    moments = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001
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
        password=passwords(),
        member_of=memberships(),
        parameters=parameters(),
        database_parameters=parameters().map(lambda some: (("postgres", some),) if some else ()),
    )
