"""The control ticker: a stall of the machine is subtracted, a product that stands still is not.

The arithmetic is tried on made-up stalls; the control's own process is then stopped, as a machine
would stop it, and beside a "product" that does nothing for a while. Source: `tests.ticker`.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.pauses import observe_for
from tests.ticker import Ticker, ticking

STOPPED_S = 0.4


def make(*stalls: tuple[str, float, float], seen_s: float = 100.0) -> Ticker:
    ticker = Ticker()
    for kind, begin_s, end_s in stalls:
        ticker.note(kind, begin_s, end_s)
    for kind in ("cpu", "disk"):
        ticker.note(kind, seen_s, seen_s)
    return ticker


def test_a_made_up_stall_is_subtracted_and_the_rest_is_the_products() -> None:
    ticker = make(("cpu", 12.0, 13.5))
    assert ticker.product_s(10.0, 20.0) == 8.5
    assert ticker.product_s(13.5, 20.0) == 6.5, "a stall that was over before is nobody's excuse"
    assert ticker.product_s(13.0, 14.0) == 0.5, "nor is the part outside of the interval"
    assert make().product_s(10.0, 20.0) == 10.0, "a product that stands still has no excuse"


def test_stalls_of_cpu_and_disk_at_one_time_count_once() -> None:
    ticker = make(("cpu", 12.0, 13.0), ("disk", 12.5, 14.0), ("cpu", 12.6, 12.7))
    assert ticker.stalled_s(10.0, 20.0) == 2.0


def test_the_longest_silence_is_that_of_the_product() -> None:
    ticker = make(("disk", 1.0, 4.0))
    assert ticker.longest_s([0.0, 0.5, 4.25, 5.25]) == 1.0, "3.75 s, of which 0.75 are its own"


def test_a_bound_is_held_or_named(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = time.monotonic()
    ticker = make(("cpu", now_s - 8.0, now_s - 1.0), seen_s=now_s + 60)
    ticker.require_within(now_s - 10.0, 4.0, "it")
    with pytest.raises(AssertionError, match=r"it: 3\.\d+ s, and 7\.00 s of the machine's"):
        ticker.require_within(now_s - 10.0, 3.0, "it")
    assert "it: 3." in capsys.readouterr().out


def test_a_control_that_is_stopped_like_everything_else_excuses_that_time(tmp_path: Path) -> None:
    with ticking(tmp_path) as (ticker, pid):
        began_s = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        observe_for(STOPPED_S, what="a machine that gives no CPU")
        os.kill(pid, signal.SIGCONT)
        ended_s = time.monotonic()
        assert ticker.stalled_s(began_s, ended_s) > 0.9 * STOPPED_S
        assert ticker.product_s(began_s, ended_s) < ended_s - began_s - 0.9 * STOPPED_S


def test_a_product_that_stands_still_stops_no_control(tmp_path: Path) -> None:
    with ticking(tmp_path) as (ticker, _):
        began_s = time.monotonic()
        observe_for(STOPPED_S, what="a product that does nothing")
        ended_s = time.monotonic()
        stalled_s = ticker.stalled_s(began_s, ended_s)
        # Whatever this machine does meanwhile: what it gives is not subtracted.
        assert ticker.product_s(began_s, ended_s) == pytest.approx(ended_s - began_s - stalled_s)
        assert stalled_s < ended_s - began_s - 0.1 * STOPPED_S


def test_a_control_that_has_ended_is_no_excuse(tmp_path: Path) -> None:
    with ticking(tmp_path) as (ticker, pid):
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(AssertionError, match="does not tick"):
            ticker.product_s(time.monotonic(), time.monotonic() + 60)
