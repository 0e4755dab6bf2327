"""What a NOTIFY on channel `pgrole` says: which role names to look at.

Any role that can connect may send any payload, so this reads with suspicion and never fails: what cannot be understood
is no names at all, and a name is only ever looked up among the declared ones.
"""

import json

CHANNEL = "pgrole"

#: Look at every role of the server.
EVERYTHING = None


def read_names(payload: str) -> tuple[str, ...] | None:
    """The role names that a payload is about; EVERYTHING for `{"op": "many"}`; empty for what is not understood."""
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(message, dict):
        return ()
    if message.get("op") == "many":
        return EVERYTHING
    names = (message.get(item) for item in ("name", "was", "claim"))
    return tuple(name for name in names if isinstance(name, str))


def greeting(token: str) -> str:
    """The payload by which the watch connection shows that it reaches the listener."""
    return json.dumps({"op": "hello", "token": token})


def is_greeting(payload: str, token: str) -> bool:
    return payload == greeting(token)
