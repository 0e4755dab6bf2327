"""What a NOTIFY on channel `pgrole` says: which role names to look at.

Any role that can connect may send any payload, so this reads with suspicion and never fails: what cannot be understood
is no names at all, and a name is only ever looked up among the declared ones.
"""

import json
from collections.abc import Iterable

CHANNEL = "pgrole"

#: Look at every role of the server.
EVERYTHING = None

#: Ours hold three names of 63 bytes, of which each may be written as six characters.
_LONGEST = 2000
_LONGEST_NAME = 63


def read_names(payload: str) -> tuple[str, ...] | None:
    """The role names that a payload is about; EVERYTHING for `{"op": "many"}`; empty for what is not understood."""
    if len(payload) > _LONGEST:
        return ()
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(message, dict):
        return ()
    if message.get("op") == "many":
        return EVERYTHING
    names = (message.get(item) for item in ("name", "was", "claim"))
    return tuple(name for name in names if isinstance(name, str) and len(name) <= _LONGEST_NAME)


def read_all(payloads: Iterable[bytes]) -> tuple[set[str], bool]:
    """The role names that any of these are about, and whether one is about EVERYTHING."""
    found: set[str] = set()
    everything = False
    for payload in set(payloads):
        names = read_names(payload.decode(errors="replace"))
        if names is EVERYTHING:
            everything = True
        else:
            found.update(names)
    return found, everything


def greeting(token: str) -> str:
    """The payload by which the watch connection shows that it reaches the listener."""
    return json.dumps({"op": "hello", "token": token})
