"""Turns into another program that ends when the process that started this one ends.

Run as a script: `python -I -S launch.py SIGNAL PARENT PROGRAM [ARGUMENT...]`, with a signal number and the starting
process's id. On Linux the kernel then sends SIGNAL to the program as soon as its parent ends, for whatever reason. This
is a script because `preexec_fn` is unsafe (and warned about) in a process with threads. It imports nothing from the
package, to start quickly.
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
    if os.getppid() != int(parent):  # the parent ended before prctl took effect
        sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()
