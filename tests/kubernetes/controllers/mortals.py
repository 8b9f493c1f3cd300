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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.controllers.deadly_proxy import Aim, DeadlyProxy, Moment, running_proxy
from tests.kubernetes.controllers.operators import (
    RESYNC_S,
    OperatorProcess,
    running_operator,
    write_kubeconfig,
)

DEATHS: Final = "DURAMEN_DEATHS"
SITES: Final = "DURAMEN_DEATH_SITES"
"""A file for what was written, and at what an operator died: `site` or `death`, and its name."""

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


def read_deaths() -> Deaths | None:
    """What DURAMEN_DEATHS says; None: nobody dies.

    Raises:
        ValueError: it is no period of two and more with a number within it and a moment.
    """
    text = os.environ.get(DEATHS, "")
    if not text:
        return None
    found = re.fullmatch(r"(\d+):(\d+):(before|after)", text)
    if found is None or int(found[1]) < 2 or not 1 <= int(found[2]) <= int(found[1]):
        raise ValueError(f"{DEATHS}={text!r} is no PERIOD:FIRST:before or :after, as 5:2:after")
    return Deaths(int(found[1]), int(found[2]), Moment(found[3]))


@contextmanager
def operated(
    cluster: ClusterHandle, namespace: str, cluster_url: str, *, resync_s: float = RESYNC_S
) -> Iterator[OperatorProcess]:
    """An operator of a namespace while the block lasts, or, where it dies, one after the other."""
    deaths = read_deaths()
    if deaths is None:
        operator = OperatorProcess(cluster.kubeconfig, namespace, cluster_url, resync_s=resync_s)
        with running_operator(operator):
            yield operator
        return
    with running_proxy(cluster.url, cluster.certificate) as proxy:
        config = write_kubeconfig(cluster, namespace, proxy.url)
        operator = OperatorProcess(config, namespace, cluster_url, resync_s=resync_s)
        with running_operator(operator), _dying(operator, proxy, deaths):
            yield operator


@contextmanager
def _dying(operator: OperatorProcess, proxy: DeadlyProxy, deaths: Deaths) -> Iterator[None]:
    lock = threading.Lock()
    is_over = False
    written: list[str] = []

    def strike() -> None:
        with lock:
            if not is_over:
                operator.kill()
                aim(deaths.period)
                operator.start()

    def aim(number: int) -> None:
        proxy.arm(Aim(number, deaths.moment, is_writes_only=True, strike=strike, beside=UNCOUNTED))

    proxy.on_write = lambda method, path: written.append(f"{method} {path}")
    aim(deaths.first)
    try:
        yield
    finally:
        with lock:
            is_over = True
            proxy.arm(None)
    died = list(proxy.struck)
    _note("site", [*written, *died])
    _note("death", died)
    assert died, f"{DEATHS} is set, and nothing was written to die at"


def _note(kind: str, requests: list[str]) -> None:
    path = os.environ.get(SITES, "")
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.writelines(f"{kind} {name_site(one)}\n" for one in requests if counts(one))


def counts(request: str) -> bool:
    """Whether an operator may die at it."""
    return not any(part in request for part in UNCOUNTED)


def name_site(request: str) -> str:
    """Method and path without what is another one each time: namespaces of tests, events."""
    named = re.sub(r"/namespaces/t-[0-9a-f]+", "/namespaces/*", request)
    return re.sub(r"/events/.+", "/events/*", named)
