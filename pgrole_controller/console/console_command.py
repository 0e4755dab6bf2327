"""The command `console`: listens, and serves until it is stopped."""

import asyncio
import functools
import logging
import signal
import socket
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
from aiohttp import web
from anyio.abc import TaskStatus

from pgrole_controller.console.connections import LONGEST_HEADER, ConsoleProtocol
from pgrole_controller.console.console_arguments import LOOPBACK, ConsoleArguments, read_networks
from pgrole_controller.console.pages import ConsolePages
from pgrole_controller.console.scope import ask_name, read_namespaces
from pgrole_controller.console.security import RequestRules
from pgrole_controller.console.sessions import Sessions
from pgrole_controller.console.viewer import Viewer
from pgrole_controller.console.web_server import ConsoleServer, OwnerKey, Pages
from pgrole_controller.ending import DONE, FAILED, MISUSED, describe_os_error, leaves, print_error
from pgrole_controller.kube.client import ApiAddress, Client
from pgrole_controller.kube.errors import KubeError, WrongKubeconfig, explain_error
from pgrole_controller.listening import listen
from pgrole_controller.logs import set_up

log = logging.getLogger(__name__)

BACKLOG = 128
STOP_SECONDS = 2.0

#: aiohttp logs malformed requests with their content, which may be a token.
_QUIET = logging.Logger("http", level=logging.CRITICAL + 1)


class CannotServe(Exception):
    """The message is for the user."""


def run_console(arguments: ConsoleArguments) -> int:
    set_up(arguments.log_level, "auto")
    code = DONE
    try:
        anyio.run(_run, arguments)
    except* (CannotServe, KubeError) as group:
        for error in leaves(group):
            print_error(explain_error(error) if isinstance(error, KubeError) else str(error))
        code = MISUSED if isinstance(next(leaves(group)), WrongKubeconfig) else FAILED
    return code


async def _run(arguments: ConsoleArguments) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_on_signal, tasks.cancel_scope)
        await serve(arguments, ConsolePages(), make_announce(arguments))


def make_announce(arguments: ConsoleArguments) -> Callable[[str], None]:
    """Returns what prints each address, and opens the first in the browser if that was asked for.

    Some browsers only return when their user closes them: a thread waits for that, and does not delay the end.
    """
    opens = arguments.open

    def announce(address: str) -> None:
        nonlocal opens
        print(address, flush=True)  # noqa: T201
        if opens:
            opens = False
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    return announce


async def _stop_on_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()
            return


async def serve(
    arguments: ConsoleArguments,
    pages: Pages,
    announce: Callable[[str], None],
    *,
    task_status: TaskStatus[int] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until cancelled; reports the port once it listens. `announce` is called with each address to open.

    Raises CannotServe, KubeError.
    """
    listening = _listen(arguments)
    port = listening.getsockname()[1]
    with listening:
        async with anyio.create_task_group() as tasks:
            server = await _server(arguments, pages, port, announce, tasks)
            async with _accepting(server, listening):
                log.info("console listening", extra={"host": arguments.host, "port": port, "auth": arguments.auth})
                task_status.started(port)
                await anyio.sleep_forever()


def _listen(arguments: ConsoleArguments) -> socket.socket:
    try:
        return listen(arguments.host, arguments.port, BACKLOG)
    except (OSError, UnicodeError) as error:
        why = describe_os_error(error) if isinstance(error, OSError) else "not a valid host name"
        raise CannotServe(f"cannot listen on {arguments.host}:{arguments.port}: {why}") from error


async def _server(
    arguments: ConsoleArguments,
    pages: Pages,
    port: int,
    announce: Callable[[str], None],
    tasks: anyio.abc.TaskGroup,
) -> ConsoleServer:
    hosts = LOOPBACK | {name.lower().rstrip(".") for name in arguments.hostnames}
    namespaces = read_namespaces(" ".join(arguments.namespaces))
    if arguments.auth == "token":
        api = await ApiAddress.find(
            arguments.kubeconfig,
            context=arguments.context,
            address=arguments.api_server,
            ca_file=arguments.certificate_authority,
            strict_tls=arguments.strict_tls,
        )
        sessions = Sessions(tasks, api, namespaces)
        server = ConsoleServer(RequestRules(hosts, None, read_networks(arguments.trusted_proxies)), sessions, pages)
        announce(arguments.address(port))
    else:
        sessions = Sessions(tasks, None, namespaces)
        viewer = await _owner(arguments, sessions, namespaces)
        owner = OwnerKey(viewer, lambda token: announce(f"{arguments.address(port)}?token={token}"))
        sessions.on_end = owner.renew
        server = ConsoleServer(RequestRules(hosts, port), sessions, pages, owner, cookie=f"pgrole-{port}")
    tasks.start_soon(sessions.sweep)
    return server


async def _owner(arguments: ConsoleArguments, sessions: Sessions, namespaces: tuple[str, ...]) -> Viewer:
    connect = functools.partial(
        Client.connect, arguments.kubeconfig, context=arguments.context, strict_tls=arguments.strict_tls
    )
    async with connect() as client:
        name = await ask_name(client)
    return Viewer(name, lambda reachability: connect(reachability=reachability), namespaces, sessions.shared)


@asynccontextmanager
async def _accepting(server: ConsoleServer, listening: socket.socket) -> AsyncIterator[None]:
    runner = web.AppRunner(server.application(), handle_signals=False, shutdown_timeout=STOP_SECONDS)
    await runner.setup()
    manager = runner.server
    if manager is None:
        raise CannotServe("the web server did not start")
    loop = asyncio.get_running_loop()
    make = functools.partial(
        ConsoleProtocol,
        manager,
        loop=loop,
        access_log=None,  # type: ignore[arg-type]  # as aiohttp's own runner accepts it
        logger=_QUIET,
        max_field_size=LONGEST_HEADER,
        max_line_size=LONGEST_HEADER,
        auto_decompress=False,  # a few kilobytes would become megabytes before any limit counts them
    )
    try:
        listener = await loop.create_server(lambda: server.connections.accept(make), sock=listening)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.connections.sweep)
            try:
                yield
            finally:
                tasks.cancel_scope.cancel()
                listener.close()
    finally:
        with anyio.CancelScope(shield=True):
            await runner.cleanup()
