"""Prints `kubectl get pgr -A` on a machine without kubectl.

Run as `python -m pgrole_controller.local.table KUBECONFIG [--watch]`. The API server renders the table (printer
columns).
"""

import argparse
import json
import ssl
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError

import yaml

from pgrole_controller.ending import DONE, FAILED, end

_PATH = "/apis/pgrole.dev/v1alpha1/pgroles"
_AS_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m pgrole_controller.local.table", description="List every PgRole.")
    parser.add_argument("kubeconfig")
    parser.add_argument("--watch", action="store_true", help="keep running and print each change")
    chosen = parser.parse_args(arguments)
    sys.exit(end(lambda: _run(chosen.kubeconfig, watch=chosen.watch)))


def _run(kubeconfig: str, *, watch: bool) -> int:
    try:
        _show(kubeconfig, watch=watch)
    except KeyboardInterrupt:
        return DONE
    except URLError as error:
        print(f"the API server does not answer: {error.reason}", file=sys.stderr)  # noqa: T201
        return FAILED
    return DONE


def _show(kubeconfig: str, *, watch: bool) -> None:
    config = yaml.safe_load(Path(kubeconfig).read_text(encoding="utf-8"))
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    request = urllib.request.Request(  # noqa: S310
        cluster["server"] + _PATH + ("?watch=true" if watch else ""),
        headers={"Authorization": f"Bearer {user['token']}", "Accept": _AS_TABLE},
    )
    trust = ssl.create_default_context(cafile=cluster["certificate-authority"])
    with urllib.request.urlopen(request, context=trust) as response:  # noqa: S310
        if not watch:
            table = json.load(response)
            _write_rows(table, _write_heading(table))
            return
        shown: list[int] = []
        for line in response:
            table = json.loads(line)["object"]
            # Only the first table of a watch has column definitions.
            if table.get("columnDefinitions"):
                shown = _write_heading(table)
            _write_rows(table, shown)


def _write_heading(table: dict[str, Any]) -> list[int]:
    """Selects the columns of priority 0, which kubectl shows without -o wide."""
    definitions = table["columnDefinitions"]
    shown = [index for index, one in enumerate(definitions) if one.get("priority", 0) == 0]
    _write(["NAMESPACE", *(definitions[index]["name"].upper() for index in shown)])
    return shown


def _write_rows(table: dict[str, Any], shown: Sequence[int]) -> None:
    for row in table.get("rows") or []:
        cells = ("" if row["cells"][index] is None else str(row["cells"][index]) for index in shown)
        _write([row["object"]["metadata"]["namespace"], *cells])


def _write(cells: Sequence[str]) -> None:
    sys.stdout.write("".join(f"{cell:<15} " for cell in cells).rstrip() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
