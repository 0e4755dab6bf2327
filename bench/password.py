"""Measures from the commit of a changed password to the commit that restores it; in between the Secret is read and
hashed.
"""

from base64 import b64encode

from bench.drifts import Spread
from bench.objects import make, remove
from bench.repair import Repairs, measure_repairs
from bench.stand import NAMESPACE, BenchStand
from pgrole_controller.core.scram import Verifier, verifies

#: Number of roles with a password, besides all others; this many drifts each are no contest.
ROLES = 20
MOST_DRIFTS = 80

_SECRET = "bench-password"
_PASSWORD = "as declared"


def _role_name(number: int) -> str:
    return f"bench_password_{number}"


async def measure_passwords(stand: BenchStand, roles: int, drifts: int) -> Repairs:
    """Makes at most `MOST_DRIFTS` drifts, one at a time, among `roles` other roles. Its roles and objects are
    temporary.
    """
    await stand.api.request(
        "POST",
        f"/api/v1/namespaces/{NAMESPACE}/secrets",
        {"metadata": {"name": _SECRET}, "data": {"password": b64encode(_PASSWORD.encode()).decode()}},
    )
    specs = {
        f"bench-password-{number}": {
            "name": _role_name(number),
            "login": True,
            "password": {"secretRef": {"name": _SECRET}},
            "deletionPolicy": "Drop",
        }
        for number in range(ROLES)
    }
    await make(stand, specs)
    spread = Spread(_role_name, {"password": "ALTER ROLE {} PASSWORD 'changed by hand'"})
    repairs = await measure_repairs(stand, spread, ROLES, min(drifts, MOST_DRIFTS), busy=False, among=roles)
    await _check(stand)
    await remove(stand, list(specs))
    await stand.api.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}/secrets/{_SECRET}")
    return repairs


async def _check(stand: BenchStand) -> None:
    async with stand.connect() as connection:
        for number in range(ROLES):
            name = _role_name(number)
            stored = await connection.fetchval("SELECT rolpassword FROM pg_authid WHERE rolname = $1", name)
            if stored is None or not verifies(_PASSWORD, Verifier(stored)):
                raise AssertionError(f"role {name} has not the password of its Secret")
