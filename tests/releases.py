"""The previous release: its controller, CRDs and SQL."""

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
class ReleasedVersion:
    """A release; `schema` is the version of schema pgrole that it installs."""

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
        """All of schema pgrole as one script, as its controller runs it; it contains SET LOCAL, so run it in a
        transaction.
        """
        files = sorted((_unpacked(self.wheel) / "sql" / "install").glob("*.sql"))
        return "\n".join(file.read_text(encoding="utf-8") for file in files)

    def unpack(self, into: Path) -> dict[str, str]:
        """Unpacks the controller; returns the environment in which `python -m pgrole_controller` runs it."""
        if not into.exists():
            with zipfile.ZipFile(self.wheel) as archive:
                archive.extractall(into)
        # otherwise the working directory, this checkout, would come first
        return {"PYTHONPATH": str(into), "PYTHONSAFEPATH": "1"}


@cache
def _unpacked(wheel: Path) -> Path:
    """Unpacks the release's files other than Python; they exist until the process ends."""
    folder = tempfile.mkdtemp(prefix="pgrole-release-")
    atexit.register(shutil.rmtree, folder)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(_PACKED)])
    return Path(folder) / _PACKED


#: The release that this one upgrades from, and can be rolled back to.
BEFORE = ReleasedVersion("0.2.0", schema=3)
