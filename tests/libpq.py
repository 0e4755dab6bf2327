"""Asks libpq itself about a server: uses the library of a downloaded PostgreSQL in a separate process."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio

_PROGRAM = """
import ctypes, json, sys
asked = json.load(sys.stdin)
libpq = ctypes.CDLL(asked["library"])
libpq.PQconnectdbParams.restype = ctypes.c_void_p
libpq.PQerrorMessage.restype = ctypes.c_char_p
libpq.PQstatus.argtypes = libpq.PQerrorMessage.argtypes = libpq.PQfinish.argtypes = [ctypes.c_void_p]
def array(texts):
    return (ctypes.c_char_p * (len(texts) + 1))(*(text.encode() for text in texts), None)
answers = []
for options in asked["connections"]:
    connection = libpq.PQconnectdbParams(array(options.keys()), array(options.values()), 0)
    answers.append(None if libpq.PQstatus(connection) == 0 else libpq.PQerrorMessage(connection).decode())
    libpq.PQfinish(connection)
print(json.dumps(answers))
"""


async def ask_libpq(
    programs: Path, connections: list[dict[str, str]], environment: Mapping[str, str]
) -> list[str | None]:
    """Returns for each connection, given by libpq's keywords, why it failed; None if it succeeded."""
    name = "libpq.5.dylib" if sys.platform == "darwin" else "libpq.so.5"
    asked = {"library": str(programs.parent / "lib" / name), "connections": connections}
    with anyio.fail_after(30):
        done = await anyio.run_process(
            [sys.executable, "-I", "-S", "-c", _PROGRAM], input=json.dumps(asked).encode(), env=environment
        )
    answers: list[str | None] = json.loads(done.stdout)
    return answers
