"""What Python runs first in the archive `kubectl-pgrole`. Any Python 3 reads this file; the rest needs a newer one."""

import os
import sys

OLDEST, NEWEST = (3, 11), (3, 14)


def _choose_interpreter():
    """Replaces this process by one with a fitting Python from the PATH. Ends it if there is none."""
    import shutil
    import subprocess

    minors = range(NEWEST[1], OLDEST[1] - 1, -1)
    for minor in minors:
        found = shutil.which("python3.%d" % minor)
        # Ask it first: a version manager's shim is there for Pythons that are not.
        question = "import sys; sys.exit(sys.version_info[:2] != (3, %d))" % minor
        if found is not None and subprocess.call([found, "-c", question], stderr=subprocess.DEVNULL) == 0:
            os.execv(found, [found, *sys.argv])
    sys.exit(
        "kubectl pgrole: it needs Python 3.%d to 3.%d, but %s is %d.%d, and the PATH has no python3.%d to python3.%d: "
        "install one of them" % (OLDEST[1], NEWEST[1], sys.executable, *sys.version_info[:2], OLDEST[1], NEWEST[1])
    )


if not OLDEST <= sys.version_info[:2] <= NEWEST:
    _choose_interpreter()

import launcher  # noqa: E402 - its syntax is that of the Python chosen above

launcher.main()
