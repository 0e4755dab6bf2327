"""Becomes another program that ends when the process that started this one ends.

Run as a script: `python -I -S launch.py SIGNAL PARENT PROGRAM [ARGUMENT...]`, with SIGNAL a number and PARENT the
process id that started it. On Linux the kernel then sends SIGNAL to the program as soon as its parent is gone, however
it went. A script and no `preexec_fn`, which is unsafe (and warned about) in a process with threads. Imports nothing of
the package, to be quick.
"""

import os
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    number, parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        import ctypes

        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != int(parent):  # it ended before the request to be told
        sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()
