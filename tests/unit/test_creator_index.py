"""controller/privileges/creator_index: whose declarations name a role as the creator of objects."""

from dataclasses import replace

import pytest

from pgrole_controller.controller.privileges import creator_index
from pgrole_controller.controller.privileges.grantees import Grantees
from pgrole_controller.core.privileges.grantee import DatabasePrivileges, Grantee, Takeover
from pgrole_controller.core.request import Key

KEY, OTHER = Key("shop", "app"), Key("shop", "other")


def naming(*creators: str, database: str = "orders") -> DatabasePrivileges:
    return DatabasePrivileges(database, created_by=creators)


ONE = Grantee(KEY, "uid-1", 1, "app", 20_000, {"orders": naming("owner")}, {"lake": (naming("old", database="lake"),)})
TWO = Grantee(OTHER, "uid-2", 1, "other", 20_001, {"orders": naming("owner", "second")})


@pytest.fixture
def grantees() -> Grantees:
    made = Grantees()
    for one in (ONE, TWO):
        made.publish("main", one)
    return made


def test_present_and_former_declarations_name_creators(grantees: Grantees) -> None:
    assert grantees.naming("main", "orders", ("owner",)) == {KEY, OTHER}
    assert grantees.naming("main", "orders", ("second", "nobody")) == {OTHER}
    assert grantees.naming("main", "lake", ("old",)) == {KEY}
    assert grantees.naming("main", "orders", None) == {KEY, OTHER}
    for server, database, names in (("main", "orders", ("old",)), ("main", "none", None), ("other", "orders", None)):
        assert grantees.naming(server, database, names) == frozenset()


def test_what_is_published_again_or_withdrawn_names_no_former_creators(grantees: Grantees) -> None:
    grantees.publish("main", replace(ONE, declared={"orders": naming("third")}, former={}))
    assert grantees.naming("main", "orders", ("owner",)) == {OTHER}
    assert grantees.naming("main", "orders", ("third",)) == {KEY}
    assert grantees.naming("main", "lake", None) == frozenset()
    grantees.publish("main", replace(TWO, adoptee=Takeover.NEW))
    assert grantees.naming("main", "orders", None) == {KEY}
    grantees.publish("main", TWO)
    assert grantees.naming("main", "orders", None) == {KEY, OTHER}
    grantees.withdraw_all("main")
    assert grantees.naming("main", "orders", None) == frozenset()


def test_only_the_declarations_of_the_role_that_is_published_are_looked_at(
    grantees: Grantees, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_one, looked_at = creator_index._creators_of, list[Key]()

    def look(grantee: Grantee) -> set[tuple[str, str]]:
        looked_at.append(grantee.key)
        return of_one(grantee)

    monkeypatch.setattr(creator_index, "_creators_of", look)
    grantees.publish("main", ONE.with_owned(frozenset({7})))
    assert looked_at == []
    grantees.publish("main", replace(ONE, declared={"orders": naming("third")}))
    grantees.naming("main", "orders", ("owner",))
    assert looked_at == [KEY, KEY]
