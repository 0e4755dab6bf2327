"""The roles whose privileges are managed, by server, and the latest result of each in each database.

Expected flow: a server's worker publishes a Grantee when the object owns its role and the claim holds the declaration;
the workers of the databases read it, and report results. A result that differs from the last makes the server's worker
reconcile the object again, which writes status and Events; one that differs only in its news is announced at once.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from pgrole_controller.controller.privileges.creator_index import CreatorIndex
from pgrole_controller.core.drift_record import MOST
from pgrole_controller.core.privileges.grantee import Grantee
from pgrole_controller.core.privileges.privilege_result import News, PrivilegeNews, PrivilegeResult
from pgrole_controller.core.request import Key

#: Maximum number of news of one role in one database while nothing announces them: its object may not be writable.
MOST_NEWS = 100


class Grantees:
    def __init__(self) -> None:
        self._published: dict[str, dict[Key, Grantee]] = {}
        self._by_database: dict[str, dict[str, dict[Key, Grantee]]] = {}  # by server and database
        self._creators: dict[str, CreatorIndex] = {}  # by server
        self._results: dict[tuple[str, Key], dict[str, PrivilegeResult]] = {}
        self._on_change: Callable[[str, Key, frozenset[str]], None] = lambda _server, _key, _databases: None
        self._on_result: Callable[[str, Key], None] = lambda _server, _key: None
        self._on_news: Callable[[str, PrivilegeResult], bool] = lambda _server, _result: False

    def connect(
        self,
        on_change: Callable[[str, Key, frozenset[str]], None],
        on_result: Callable[[str, Key], None],
        on_news: Callable[[str, PrivilegeResult], bool],
    ) -> None:
        """`on_change(server, key, databases)`: was published or withdrawn, with its databases before and now.
        `on_result(server, key)`: a database's worker has something new about it, for status.
        `on_news(server, result)`: only its news are new. Returns whether they were announced; else `on_result` follows.
        """
        self._on_change, self._on_result, self._on_news = on_change, on_result, on_news

    def publish(self, server: str, grantee: Grantee) -> None:
        """Publishes a Grantee; does nothing if it is unchanged. If only `owned` has changed, call `note_owners`, too:
        that concerns few databases.
        """
        before = self.get(server, grantee.key)
        if before == grantee:
            return
        self._put(server, before, grantee)
        if before is not None and grantee.adoptee is None and before.equals_but_for_owned(grantee):
            return
        if before is not None and before.uid != grantee.uid:
            self._results.pop((server, grantee.key), None)
        results = self._results.get((server, grantee.key), {})
        for database in [name for name, one in results.items() if name not in grantee.databases and not one.news]:
            del results[database]
        other_options = before is not None and before.drift_options != grantee.drift_options
        for database, one in results.items():
            # It stays no answer if the former spec returns later.
            if other_options or one.digest != grantee.digest_of(database):
                results[database] = replace(one, digest="")
        self._on_change(server, grantee.key, grantee.databases | (before.databases if before else frozenset()))

    def note_owners(self, server: str, key: Key, databases: Collection[str]) -> None:
        """The namespace's roles are others than before, and some of these own something in these databases."""
        one = self.get(server, key)
        affected = [name for name in one.databases if name in databases or one.names_creators(name)] if one else ()
        if affected:
            self._on_change(server, key, frozenset(affected))

    def withdraw(self, server: str, key: Key) -> None:
        """Withdraws the role: the object no longer owns one, or its declaration cannot be read."""
        before = self._published.get(server, {}).pop(key, None)
        self._results.pop((server, key), None)
        if before is not None:
            self._drop(server, key, before.databases)
            self._creators[server].replace(before, None)
            self._on_change(server, key, before.databases)

    def _put(self, server: str, before: Grantee | None, grantee: Grantee) -> None:
        self._published.setdefault(server, {})[grantee.key] = grantee
        self._creators.setdefault(server, CreatorIndex()).replace(before, grantee)
        if before is not None:
            self._drop(server, grantee.key, before.databases - grantee.databases)
        places = self._by_database.setdefault(server, {})
        for database in grantee.databases:
            places.setdefault(database, {})[grantee.key] = grantee

    def _drop(self, server: str, key: Key, databases: Collection[str]) -> None:
        places = self._by_database.setdefault(server, {})
        for database in databases:
            del places[database][key]
            if not places[database]:
                del places[database]

    def get(self, server: str, key: Key) -> Grantee | None:
        return self._published.get(server, {}).get(key)

    def published(self, server: str) -> tuple[Grantee, ...]:
        return tuple(self._published.get(server, {}).values())

    def withdraw_all(self, server: str) -> None:
        """Withdraws all roles of a server that is no longer declared."""
        for key in tuple(self._published.get(server, ())):
            self.withdraw(server, key)

    def of_database(self, server: str, database: str) -> tuple[Grantee, ...]:
        return tuple(self.published_in(server, database).values())

    def published_in(self, server: str, database: str) -> Mapping[Key, Grantee]:
        """Returns a live view: copy it before awaiting."""
        return self._by_database.get(server, {}).get(database, {})

    def naming(self, server: str, database: str, creators: Collection[str] | None) -> frozenset[Key]:
        """The roles, except adoptees, whose declarations there name one of these creators; None: any creator."""
        index = self._creators.get(server)
        return frozenset() if index is None else index.find(database, creators)

    def databases(self, server: str) -> frozenset[str]:
        """Every database that a published Grantee names."""
        return frozenset(self._by_database.get(server, ()))

    def report(self, server: str, result: PrivilegeResult) -> None:
        """Stores a result. News that no caller took yet remain, and so do the last drifts. Standing drift that another
        session reports again is no news. Ignores a result about a role that is not published.
        """
        published = self.get(server, result.key)
        if published is None or published.uid != result.uid:
            return
        results = self._results.setdefault((server, result.key), {})
        before = results.get(result.database)
        if before is not None:
            result = _follow(before, result)
        elif result.reported:
            result = replace(result, told=result.reported)
        if before == result:
            return
        if before is not None and before == replace(result, news=()) and self._on_news(server, result):
            return
        results[result.database] = result
        self._on_result(server, result.key)

    def results(self, server: str, key: Key) -> dict[str, PrivilegeResult]:
        """The results of one key, by database."""
        return dict(self._results.get((server, key), {}))

    def take_news(self, server: str, key: Key, announced: Collection[str] = frozenset()) -> tuple[PrivilegeNews, ...]:
        """Returns the news of one key, each once. `announced`: databases whose reported drift an earlier process has
        announced.
        """
        results = self._results.get((server, key), {})
        taken = tuple(
            one
            for name, result in results.items()
            for one in result.news
            if not (one.first and one.reason is News.DRIFT_REPORTED and name in announced)
        )
        for database, result in results.items():
            results[database] = replace(result, news=())
        return taken


def _follow(before: PrivilegeResult, result: PrivilegeResult) -> PrivilegeResult:
    """Returns the result with what the one before it has and no status or Event may say yet: mostly nothing, and a
    complete read reports thousands.
    """
    kept = before.news or before.told or before.earlier_drifts or before.last_drifts != result.last_drifts
    if not (kept or result.news or result.reported):
        return result
    gone = [drift for drift in before.last_drifts if drift.corrected and drift not in result.last_drifts]
    earlier = (*before.earlier_drifts, *gone)[-MOST:]
    told = before.told if result.error is not None and not result.reported else result.reported
    stands = (before.digest, before.told) == (result.digest, result.reported)
    news = [one for one in result.news if not (stands and one.first and one.reason is News.DRIFT_REPORTED)]
    return replace(result, told=told, news=(*before.news, *news)[-MOST_NEWS:], earlier_drifts=earlier)
