"""The release before this one, as it was: its controller, its CRDs, its SQL."""

import zipfile
from dataclasses import dataclass
from pathlib import Path

_DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True)
class Release:
    """`schema` is the version of schema pgrole that it installs."""

    version: str
    schema: int

    @property
    def folder(self) -> Path:
        return _DATA / self.version

    @property
    def crds(self) -> Path:
        return self.folder / "crds"

    @property
    def samples(self) -> Path:
        return self.folder / "samples"

    @property
    def wheel(self) -> Path:
        (wheel,) = self.folder.glob("*.whl")
        return wheel

    def install_sql(self) -> str:
        """All of schema pgrole as one script, as its controller runs it; in a transaction, SET LOCAL is in it."""
        files = sorted((self.folder / "sql" / "install").glob("*.sql"))
        return "\n".join(file.read_text(encoding="utf-8") for file in files)

    def unpack(self, into: Path) -> dict[str, str]:
        """Unpacks the controller; the environment that `python -m pgrole_controller` needs to be that one."""
        if not into.exists():
            with zipfile.ZipFile(self.wheel) as archive:
                archive.extractall(into)
        # else the working directory would come first, which is this checkout
        return {"PYTHONPATH": str(into), "PYTHONSAFEPATH": "1"}


#: The one that this release can be upgraded from, and set back to.
BEFORE = Release("0.2.0", schema=3)
