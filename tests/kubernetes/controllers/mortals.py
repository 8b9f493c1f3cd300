"""The operator of a scenario, which dies at its writes where DURAMEN_DEATHS says so.

`DURAMEN_DEATHS=5:2:after` kills it at its second write to the API server and then at each fifth of
a life, right after the API server did it (`before`: instead of it), and the next one starts at
once. A scenario asks for the same end as ever. So five runs (5:1 to 5:5) for each moment stop an
operator at every write that its scenarios have; `python -m tests.kubernetes.deaths` plays them, and
says which writes nobody died at.

Used by tests of this folder that have one operator. Source: CONTRIBUTING.md "Tests on a real
Kubernetes".
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.controllers.changing_world import list_faults
from tests.kubernetes.controllers.deadly_proxy import Aim, DeadlyProxy, Moment, running_proxy
from tests.kubernetes.controllers.operators import (
    RESYNC_S,
    OperatorProcess,
    running_operator,
    write_kubeconfig,
)

DEATHS: Final = "DURAMEN_DEATHS"
SITES: Final = "DURAMEN_DEATH_SITES"
"""A file for what was `written`, and at what an operator died, `before` or `after` it."""

UNCOUNTED: Final = ("/leases", "/selfsubjectrulesreviews")
"""What a life begins with: one that died at its first write would get nowhere. A review is no
write, though it is posted."""


class Deaths(NamedTuple):
    """At which writes operators die."""

    period: int
    """Of so many writes of a life the last one is not survived."""
    first: int
    """As many has the first life."""
    moment: Moment


def read_deaths(text: str) -> Deaths:
    """What DURAMEN_DEATHS says.

    Raises:
        ValueError: it is no period of two and more with a number within it and a moment.
    """
    found = re.fullmatch(r"(\d+):(\d+):(before|after)", text)
    if found is None or int(found[1]) < 2 or not 1 <= int(found[2]) <= int(found[1]):
        raise ValueError(f"{DEATHS}={text!r} is no PERIOD:FIRST:before or :after, as 5:2:after")
    return Deaths(int(found[1]), int(found[2]), Moment(found[3]))


@contextmanager
def operated(
    cluster: ClusterHandle,
    namespace: str,
    cluster_url: str,
    *,
    resync_s: float = RESYNC_S,
    spared: Collection[str] = (),
) -> Iterator[OperatorProcess]:
    """An operator of a namespace while the block lasts, or, where it dies, one after the other.

    Args:
        spared: it does not die at writes of whose path one of these is a part, as it is then.
    """
    text = os.environ.get(DEATHS, "")
    if not text:
        operator = OperatorProcess(cluster.kubeconfig, namespace, cluster_url, resync_s=resync_s)
        with running_operator(operator):
            yield operator
        return
    deaths = read_deaths(text)
    with running_proxy(cluster.url, cluster.certificate) as proxy:
        config = write_kubeconfig(cluster, namespace, proxy.url)
        operator = OperatorProcess(config, namespace, cluster_url, resync_s=resync_s)
        with running_operator(operator), _dying(operator, proxy, deaths, spared):
            yield operator
        assert not list_faults(operator.log.read_text(errors="replace"))


@contextmanager
def _dying(
    operator: OperatorProcess, proxy: DeadlyProxy, deaths: Deaths, spared: Collection[str]
) -> Iterator[None]:
    lock = threading.Lock()
    is_over = False
    written: list[str] = []
    died: list[str] = []

    def strike() -> None:
        with lock:
            if not is_over:
                operator.kill()
                died.append(proxy.struck[-1])
                aim(deaths.period)
                operator.start()

    def aim(number: int) -> None:
        beside = (*UNCOUNTED, *spared)
        proxy.arm(Aim(number, deaths.moment, is_writes_only=True, strike=strike, beside=beside))

    proxy.on_write = lambda method, path: written.append(f"{method} {path}")
    aim(deaths.first)
    try:
        yield
    finally:
        with lock:
            is_over = True
            proxy.arm(None)
    assert died, f"nobody died: fewer than {deaths.first} writes"
    _note({f"written {name_site(one)}" for one in (*written, *died) if counts(one)})
    _note(f"{deaths.moment.value} {name_site(one)}" for one in died)


def _note(lines: Iterable[str]) -> None:
    path = os.environ.get(SITES, "")
    if path:
        # In one piece: another worker writes to its end as well.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, "".join(f"{line}\n" for line in lines).encode())
        finally:
            os.close(descriptor)


def counts(request: str) -> bool:
    """Whether an operator may die at it."""
    return not any(part in request for part in UNCOUNTED)


def name_site(request: str) -> str:
    """Method and path without what is another one each time."""
    named = re.sub(r"/namespaces/t-[0-9a-f]+", "/namespaces/*", request)
    named = re.sub(r"/look-\d+", "/look-*", named)  # of test_secured, as many as it takes
    return re.sub(r"/events/.+", "/events/*", named)
