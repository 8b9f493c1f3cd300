"""Programs that tests start heed SIGINT, though the tests were started in the background.

Shown with processes of their own, which inherit that SIGINT is ignored as a shell has it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import interrupts

ROOT = Path(__file__).resolve().parents[2]
HANG_S = 60
IN_THE_BACKGROUND = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
INTERRUPT_A_CHILD = f"""
import signal, subprocess, sys
sys.path.insert(0, {str(ROOT)!r})
from tests import interrupts
assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
interrupts.heed()
wait = "print('there', flush=True); import signal; signal.pause()"
child = subprocess.Popen([sys.executable, "-c", wait], stdout=subprocess.PIPE, text=True)
assert child.stdout.readline() == "there\\n"
child.send_signal(signal.SIGINT)
try:
    child.wait({HANG_S})
finally:
    child.kill()
"""


def test_a_handler_that_somebody_left_behind_is_replaced() -> None:
    signal.signal(signal.SIGINT, lambda *_: None)
    interrupts.heed()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_children_heed_sigint_where_it_was_ignored() -> None:
    ended = subprocess.run(
        [*IN_THE_BACKGROUND, sys.executable, "-c", INTERRUPT_A_CHILD],
        capture_output=True, text=True, timeout=2 * HANG_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "KeyboardInterrupt" in ended.stderr
