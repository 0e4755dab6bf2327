"""Decides which modules parallel workers start with, and whose tests may be distributed."""

from pathlib import PurePath

#: Their tests wait long and share nothing. Longest first.
LONGEST = (
    *("test_away", "test_leader", "test_clusters", "test_upgrade", "test_restart", "test_rotation", "test_identity"),
    *("test_uninstall", "test_backup", "test_failover", "test_faults", "test_contest", "test_home", "test_deletion"),
)


def place(path: PurePath) -> int:
    """Returns the rank of a module among all."""
    return LONGEST.index(path.stem) if path.stem in LONGEST else len(LONGEST)


def goes_alone(nodeid: str) -> bool:
    """Tells whether a test may run apart from its module's other tests."""
    path = PurePath(nodeid.partition("::")[0])
    return path.parent.name == "acceptance" and path.stem in LONGEST
