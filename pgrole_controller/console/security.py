"""What a request must be before anything else is looked at, and the headers of every answer.

A browser tells where a request comes from (Host, Origin, Sec-Fetch-Site). A Host that is not the console's own is a
rebound DNS name; another Origin is another site. A client that is not a browser can send anything, and gains nothing:
without a session's cookie or a token it gets the login page.
"""

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

from aiohttp import web

from pgrole_controller.console.console_arguments import Network

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cache-Control": "no-store",
}
METHODS = frozenset({"GET", "HEAD", "POST"})
TOKEN_HEADER = "X-Forwarded-Access-Token"  # noqa: S105 -- a header's name
FORWARDED_HEADER = "X-Forwarded-For"
_MOST_FORWARDED = 8  # headers
_OWN_SITE = frozenset({"same-origin", "none"})
#: Browsers take `//` and `/\` at the start for another site, and leave out line breaks and tabs.
_OWN_PAGE = re.compile(r"/(?![/\\])[!-~]{0,600}")


@dataclass(frozen=True, slots=True)
class RequestRules:
    """`hosts`: names by which browsers reach the console, in lower case, without port. `port`: None if a proxy or a
    forwarded port may change it. `trusted`: networks of proxies that may send a viewer's token.
    """

    hosts: frozenset[str]
    port: int | None
    trusted: tuple[Network, ...] = ()

    def knows_host(self, host: str) -> bool:
        """`host`: the header, with or without port."""
        try:
            parts = urlsplit(f"//{host}")
            name, port = parts.hostname, parts.port
        except ValueError:
            return False
        if parts.netloc != host or "@" in host or name is None or name.rstrip(".") not in self.hosts:
            return False
        return self.port is None or (port or 80) == self.port

    def trusts(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        return any(found in network for network in self.trusted)

    def problem(self, request: web.Request) -> str | None:
        """Says why a request is refused; None: it is not."""
        host = request.headers.getall("Host", [])
        if len(host) != 1 or not self.knows_host(host[0]):
            return "this console is not known by that name (start it with --hostname to add one)"
        if request.method not in METHODS:
            return "this console is read-only"
        origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site", "none")
        own = {None, f"http://{host[0]}", f"https://{host[0]}"}
        if site == "same-origin":  # which no page can forge: under `no-referrer`, browsers send a form's origin as null
            own.add("null")
        if origin not in own:
            return "the request comes from another origin"
        if site not in _OWN_SITE and not is_navigation(request):
            return "the request comes from another site"
        return None


def is_navigation(request: web.Request) -> bool:
    """Whether the request opens a page in a window, for example because a link on another site was followed."""
    fetch = request.headers.get("Sec-Fetch-Mode"), request.headers.get("Sec-Fetch-Dest")
    return request.method == "GET" and fetch == ("navigate", "document")


def is_from_elsewhere(request: web.Request) -> bool:
    """Whether the browser followed a link on another site, and therefore did not send the strict cookie."""
    return is_navigation(request) and request.headers.get("Sec-Fetch-Site", "none") not in _OWN_SITE


def own_page(path: str) -> str:
    """Returns the path and query of a page of this site; of the overview for anything else or longer."""
    return path if _OWN_PAGE.fullmatch(path) else "/"


def login_for(path: str) -> str:
    """Returns the address of the login page that leads to this page of the console."""
    page = own_page(path)
    return "/login" if page == "/" else f"/login?{urlencode({'page': page})}"


def address_of(request: web.Request) -> str:
    """The address of whoever opened the connection; empty if unknown."""
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    return str(peer[0]) if isinstance(peer, tuple) else ""


def client_of(request: web.Request, rules: RequestRules) -> str:
    """The address of the client: of the connection, or as trusted proxies forwarded it. IPv6: of its /64 network.

    Each proxy appends to X-Forwarded-For whom it heard, so only what trusted ones appended is believed, from the right.
    """
    address = address_of(request)
    forwarded = ",".join(request.headers.getall(FORWARDED_HEADER, [])[:_MOST_FORWARDED]).split(",")
    while forwarded and rules.trusts(address):
        before = forwarded.pop().strip()
        try:
            ipaddress.ip_address(before)
        except ValueError:
            break
        address = before
    return _name_network(address)


def named_client(request: web.Request, rules: RequestRules) -> str | None:
    """The address of the client as `client_of` returns it, if a proxy names it; else None."""
    client = client_of(request, rules)
    return None if client == _name_network(address_of(request)) else client


def _name_network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is None:
        return str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))
    return str(getattr(found, "ipv4_mapped", None) or found)


def bearer_token(request: web.Request) -> str | None:
    """The token in the headers that an authenticating proxy sets. A header that comes twice is none."""
    given = request.headers.getall("Authorization", [])
    if len(given) == 1 and given[0][:7].lower() == "bearer ":
        return given[0][7:].strip()
    forwarded = request.headers.getall(TOKEN_HEADER, [])
    return forwarded[0].strip() if len(forwarded) == 1 else None


async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.pop("Server", None)
