"""Which modules several processes begin with, and whose tests need not stay together."""

from pathlib import PurePath

#: Their tests wait long and share nothing. The longest ones first.
LONGEST = (
    *("test_away", "test_leader", "test_clusters", "test_upgrade", "test_restart", "test_rotation", "test_identity"),
    *("test_uninstall", "test_backup", "test_failover", "test_faults", "test_contest", "test_home", "test_deletion"),
)


def place(path: PurePath) -> int:
    """Of a module, among all."""
    return LONGEST.index(path.stem) if path.stem in LONGEST else len(LONGEST)


def goes_alone(nodeid: str) -> bool:
    """Whether a test may be handed out without the others of its module."""
    path = PurePath(nodeid.partition("::")[0])
    return path.parent.name == "acceptance" and path.stem in LONGEST
