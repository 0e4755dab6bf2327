"""The release before this one, as it was: its controller, its CRDs, its SQL."""

import atexit
import shutil
import tempfile
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_DATA = Path(__file__).parent / "data"
_PACKED = "pgrole_controller/_data/"


@dataclass(frozen=True, slots=True)
class Release:
    """`schema` is the version of schema pgrole that it installs."""

    version: str
    schema: int

    @property
    def crds(self) -> Path:
        return _unpacked(self.wheel) / "crds"

    @property
    def samples(self) -> Path:
        return _unpacked(self.wheel) / "deploy" / "samples"

    @property
    def wheel(self) -> Path:
        (wheel,) = (_DATA / self.version).glob("*.whl")
        return wheel

    def install_sql(self) -> str:
        """All of schema pgrole as one script, as its controller runs it; in a transaction, SET LOCAL is in it."""
        files = sorted((_unpacked(self.wheel) / "sql" / "install").glob("*.sql"))
        return "\n".join(file.read_text(encoding="utf-8") for file in files)

    def unpack(self, into: Path) -> dict[str, str]:
        """Unpacks the controller; the environment that `python -m pgrole_controller` needs to be that one."""
        if not into.exists():
            with zipfile.ZipFile(self.wheel) as archive:
                archive.extractall(into)
        # else the working directory would come first, which is this checkout
        return {"PYTHONPATH": str(into), "PYTHONSAFEPATH": "1"}


@cache
def _unpacked(wheel: Path) -> Path:
    """The files that are not Python, until the end of the process."""
    folder = tempfile.mkdtemp(prefix="pgrole-release-")
    atexit.register(shutil.rmtree, folder)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(_PACKED)])
    return Path(folder) / _PACKED


#: The one that this release can be upgraded from, and set back to.
BEFORE = Release("0.2.0", schema=3)
