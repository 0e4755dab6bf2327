"""Parses PgRoles and PgServers from the API server with their models.

The models, and pydantic with them, are imported for the first object, which saves a controller without objects 10 MiB
and a quarter of the CPU time of its start. An event loop should run `load` beforehand, in a thread.
"""

from contextlib import suppress
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pgrole_controller.imports import gc_paused, skip_pydantic_plugins

if TYPE_CHECKING:
    from pydantic import ValidationError

    from pgrole_controller.api.pgrole import PgRole
    from pgrole_controller.api.pgserver import PgServer

AnyKind = TypeVar("AnyKind", "PgRole", "PgServer")
_PROBLEMS = 5
_loading = Lock()


class Invalid(Exception):
    """An invalid object: the first problems, each with its field, for the object's author."""


class _Models(NamedTuple):
    pgrole: "type[PgRole]"
    pgserver: "type[PgServer]"
    error: "type[ValidationError]"


def load() -> None:
    """Imports the models and builds PgRole's, once. May run in any thread."""
    _models()


def read_pgrole(obj: dict[str, Any]) -> "PgRole":
    """Parses a PgRole, without its status if that is invalid. Raises Invalid."""
    return _read(_models().pgrole, obj)


def read_pgserver(obj: dict[str, Any]) -> "PgServer":
    """Parses a PgServer, without its status if that is invalid. Raises Invalid."""
    return _read(_models().pgserver, obj)


def _read(model: "type[AnyKind]", obj: dict[str, Any]) -> "AnyKind":
    """Status is output: a newer release, or a time that Python cannot represent, must not make an object invalid."""
    invalid = _models().error
    with suppress(invalid):
        return model.model_validate(obj)
    try:
        return model.model_validate({name: value for name, value in obj.items() if name != "status"})
    except invalid as error:
        raise Invalid(_describe(error)) from error


@cache
def _models() -> _Models:
    with _loading, gc_paused():
        skip_pydantic_plugins()
        from pydantic import ValidationError

        from pgrole_controller.api.pgrole import PgRole
        from pgrole_controller.api.pgserver import PgServer

        PgRole.model_rebuild()
        return _Models(PgRole, PgServer, ValidationError)


def _describe(error: "ValidationError") -> str:
    problems = error.errors()[:_PROBLEMS]
    return "; ".join(_describe_one(".".join(map(str, one["loc"])), one["type"], one["msg"]) for one in problems)


def _describe_one(field: str, kind: str, message: str) -> str:
    """Our own messages may name the field already. Those of pydantic speak of an input, and of a class."""
    if message.startswith(field):
        return message
    text = "must be an object" if kind == "model_type" else message.replace("Input should", "must", 1)
    return f"{field}: {text}"
