"""Decides which modules parallel workers start with, and whose tests may be distributed."""

from pathlib import PurePath

#: Their tests wait long and share nothing. Longest first.
LONGEST = (
    *(
        "test_contest",
        "test_without_kubernetes",
        "test_attacks",
        "test_upgrade",
        "test_leader",
        "test_batch",
        "test_clusters",
    ),
    *("test_uninstall", "test_rotation", "test_faults", "test_deletion", "test_restart", "test_identity"),
    *("test_isolation", "test_backup", "test_failover", "test_home"),
)

#: They run long as well, but their tests share fixtures that take long to start.
_TOGETHER = ("test_attacks", "test_batch", "test_isolation")


def place(path: PurePath) -> int:
    """Returns the rank of a module among all."""
    return LONGEST.index(path.stem) if path.stem in LONGEST else len(LONGEST)


def goes_alone(nodeid: str) -> bool:
    """Tells whether a test may run apart from its module's other tests."""
    path = PurePath(nodeid.partition("::")[0])
    return path.parent.name == "acceptance" and path.stem in LONGEST and path.stem not in _TOGETHER
