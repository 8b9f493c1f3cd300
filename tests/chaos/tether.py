"""Runs a command that dies with the process that started it: `python tether.py PARENT COMMAND…`.

The kernel sends SIGKILL when the parent ends, also when the parent was killed itself: a chaos run
that is cut off leaves nothing behind. The setting survives the exec, so the command keeps this pid.

Called by `cluster` for every process of a run. Linux only, as the product.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the parent is gone already")
    os.execvp(sys.argv[2], sys.argv[2:])
