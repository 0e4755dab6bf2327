"""What `dev` tells its user once everything runs: what to export, and commands that work when they are copied."""

import shlex
import shutil
import sys
from pathlib import Path

_RULE = "─" * 78


def guide(*, kubeconfig: Path, dsn: str, psql: Path, state: Path | None) -> str:
    """The text; commands name the programs that this machine has."""
    kept = f"state kept in {state}" if state else "no state is kept"
    return f"""{_RULE}
Everything is running. In another terminal:

  export KUBECONFIG={shlex.quote(str(kubeconfig))}
  export PGROLE_DSN={shlex.quote(dsn)}

1. List the declared roles and their state:
  {_list(kubeconfig)}

2. Cause drift (repaired within milliseconds; see column Drifts in 1):
  {_drift(psql, dsn)}

3. Watch the repair (in a third terminal, before step 2):
  {_watch(kubeconfig)}

Ctrl-C stops everything ({kept}).
{_RULE}"""


def _list(kubeconfig: Path) -> str:
    return _kubectl(kubeconfig, "get", "pgr", "-A") or _table(kubeconfig)


def _watch(kubeconfig: Path) -> str:
    return _kubectl(kubeconfig, "get", "pgr", "-A", "-w") or _table(kubeconfig, "--watch")


def _drift(psql: Path, dsn: str) -> str:
    program = "psql" if shutil.which("psql") else str(psql)
    return shlex.join([program, dsn, "-c", "ALTER ROLE orders_app CREATEDB"])


def _kubectl(kubeconfig: Path, *arguments: str) -> str:
    if shutil.which("kubectl") is None:
        return ""
    return shlex.join(["kubectl", f"--kubeconfig={kubeconfig}", *arguments])


def _table(kubeconfig: Path, *arguments: str) -> str:
    return shlex.join([sys.executable, "-m", "pgrole_controller.local.table", str(kubeconfig), *arguments])
