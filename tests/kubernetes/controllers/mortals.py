"""The operator of a scenario, which dies at its writes where DURAMEN_DEATHS says so.

`DURAMEN_DEATHS=5:2:after` kills it at its second write to the API server and then at each fifth of
a life, right after the API server did it (`before`: instead of it), and the next one starts at
once. `new:after` kills it at the first write of each method to each object, as `name_site` has it:
at everything that a scenario writes, once; `rest:after` only where nobody died in an earlier run. A
scenario asks for the same end as ever.
`python -m tests.kubernetes.deaths` plays runs of both, and says which writes nobody died at.

Used by tests of this folder that have one operator. Source: CONTRIBUTING.md "Tests on a real
Kubernetes".
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
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
NEW: Final = "new"
REST: Final = "rest"
SITES: Final = "DURAMEN_DEATH_SITES"
"""A file for what was `written`, and at what an operator died, `before` or `after` it."""

UNCOUNTED: Final = ("/leases", "/selfsubjectrulesreviews")
"""What a life begins with: one that died at its first write would get nowhere. A review is no
write, though it is posted."""


class Deaths(NamedTuple):
    """At which writes operators die."""

    moment: Moment
    is_new_only: bool
    """Only at writes at whose like nobody died before in this scenario."""
    is_rest_only: bool = False
    """Nor in an earlier run: there may be none."""
    period: int = 1
    """Of so many writes of a life the last one is not survived."""
    first: int = 1
    """As many has the first life."""


def read_deaths(text: str) -> Deaths:
    """What DURAMEN_DEATHS says.

    Raises:
        ValueError: it is neither "new", "rest" nor a period of two and more with a number within
            it, and a moment.
    """
    which, _, moment = text.rpartition(":")
    if moment in {one.value for one in Moment}:
        if which in (NEW, REST):
            return Deaths(Moment(moment), is_new_only=True, is_rest_only=which == REST)
        found = re.fullmatch(r"(\d+):(\d+)", which, re.ASCII)
        if found is not None and int(found[1]) >= 2 and 1 <= int(found[2]) <= int(found[1]):
            return Deaths(Moment(moment), False, False, int(found[1]), int(found[2]))
    raise ValueError(
        f"{DEATHS}={text!r} is none of new:MOMENT, rest:MOMENT, PERIOD:FIRST:MOMENT: 5:2:after"
    )


class Sites(NamedTuple):
    """What was written in all runs, and how many operators died at each, by the moment."""

    written: set[str]
    died: Counter[tuple[str, str]]
    left: set[tuple[str, str]]
    """What a run that struck at the rest alone wrote, by its moment."""


def read_sites(path: Path) -> Sites:
    """What the runs have noted."""
    found = Sites(set(), Counter(), set())
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        kind, _, site = line.partition(" ")
        if kind == "written":
            found.written.add(site)
        elif kind.startswith(f"{REST}:"):
            found.left.add((kind.removeprefix(f"{REST}:"), site))
        else:
            found.died[kind, site] += 1
    return found


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
    before = set[str]()
    if deaths.is_rest_only:
        noted = read_sites(Path(os.environ[SITES])).died
        before = {site for moment, site in noted if moment == deaths.moment.value}

    def strike() -> None:
        with lock:
            if not is_over:
                operator.kill()
                died.append(proxy.struck[-1])
                aim(deaths.period)
                operator.start()

    def aim(number: int) -> None:
        beside, known = (*UNCOUNTED, *spared), before | {name_site(one) for one in died}
        proxy.arm(
            Aim(
                number,
                deaths.moment,
                is_writes_only=True,
                strike=strike,
                beside=beside,
                is_wanted=lambda one: not (deaths.is_new_only and name_site(one) in known),
            )
        )

    proxy.on_write = lambda method, path: written.append(f"{method} {path}")
    aim(deaths.first)
    try:
        yield
    finally:
        with lock:
            is_over = True
            proxy.arm(None)
    assert died or deaths.is_rest_only, f"nobody died: fewer than {deaths.first} writes"
    sites = {name_site(one) for one in (*written, *died) if counts(one)}
    _note({f"written {site}" for site in sites})
    if deaths.is_rest_only:
        _note({f"{REST}:{deaths.moment.value} {site}" for site in sites})
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
