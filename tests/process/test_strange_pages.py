"""No page that a browser shows can act on a cluster on this machine, or read from it; its own can.

One cluster that asks who calls, and one that does not. First every route of every port, as its own
documents list them, is asked as a stranger would whose browser shows all that the cluster's owner
has: a route that is made later is asked, too. Then a real browser opens a stranger's page whose
script tries all it can, and pages that may: the cluster's own, and one of an origin that was named.

The decision is `tests/unit/test_gate.py`'s. Source: ADR 0025, docs/protocol/rest.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import pytest

from duramen.runtime.public.calls import find_bodies
from duramen.wire.edge.gate import Bodies
from tests.process.browser import serving, write_page
from tests.process.chromium import Chromium, find_chromium, running_chromium
from tests.process.cluster import LocalCluster, create_log, run, running_cluster
from tests.process.times import HANG_S

pytestmark = [pytest.mark.process, pytest.mark.timeout(3 * HANG_S)]

LOG: Final = "/v1/namespaces/default/logs/kept"
RECORDS: Final = f"{LOG}/records"
STRANGER: Final = "stranger.example"
NAMED: Final = ("--public-name", "logs.example.org", "--public-name", "other.example.org")
HIDDEN: Final = ("/docs", "/redoc", "/openapi.json")
"""Of the admin ports: what their documents do not list."""

DATA_PATHS: Final = {
    "bookie": ("/b/add", "/b/read", "/x"),
    "sequencer": ("/s/append", "/s/control"),
}
STRANGE: Final[dict[str, tuple[dict[str, str], int]]] = {
    "a name that resolves to us": ({"host": "rebound.example"}, 421),
    "a page behind such a name": (
        {"host": "rebound.example", "origin": "http://rebound.example"}, 421,
    ),
    "another page": ({"origin": "http://stranger.example"}, 403),
    "a page without an origin": ({"origin": "null"}, 403),
    "a link or a picture": ({"sec-fetch-site": "cross-site"}, 403),
}  # fmt: skip


class Route(NamedTuple):
    """What can be asked of a port."""

    method: str
    url: str
    bodies: Bodies


class Site(NamedTuple):
    """The cluster, and the page that it was told of."""

    cluster: LocalCluster
    origin: str
    folder: Path
    is_secure: bool

    def open_http(self) -> httpx.Client:
        """As the owner of the cluster, at every port."""
        shown = {}
        if self.is_secure:
            token = (self.cluster.folder / "token").read_text().strip()
            shown = {"authorization": f"Bearer {token}"}
        trusted = self.cluster.trust_admin_ports()
        return httpx.Client(timeout=20, trust_env=False, verify=trusted, headers=shown)


@pytest.fixture(scope="module", params=["none", pytest.param("on", marks=pytest.mark.night)])
def site(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    data = tmp_path_factory.mktemp("cluster") / "data"
    # A machine that is slow ends no session meanwhile: another epoch would look like a stranger's.
    flags = (*NAMED, "--security", request.param, "--session-timeout", "10s")
    with (
        serving(folder) as origin,
        running_cluster(data, *flags, "--cors-origin", origin) as cluster,
    ):
        opened = Site(cluster, origin, folder, request.param == "on")
        run(create_log(cluster, "kept", {}))
        write = cluster.state()["write_url"]
        append = {"records": [{"body": "kept"}, {"body": "as it was"}]}
        with opened.open_http() as http:
            http.post(write + RECORDS, json=append).raise_for_status()
        (folder / "empty.html").write_text("<!doctype html><title>page</title>", encoding="utf-8")
        write_page(folder, write_url=write, read_url=cluster.state()["read_url"])
        yield opened


def list_services(cluster: LocalCluster) -> list[dict[str, Any]]:
    return [p for p in cluster.state()["processes"] if p["role"] != "zookeeper"]


def list_routes(cluster: LocalCluster, http: httpx.Client) -> list[Route]:
    """Every route of every port of every process."""
    found = []
    for process in list_services(cluster):
        admin, data = process["admin_url"], process["data_url"]
        found += [Route("GET", admin + path, Bodies.JSON) for path in HIDDEN]
        found += read_document(http, admin, "/openapi.json", is_public=False)
        if process["role"] in DATA_PATHS:
            paths = DATA_PATHS[process["role"]]
            found += [Route("POST", data + path, Bodies.FRAMES) for path in paths]
        else:
            found += read_document(http, data, "/v1/openapi.json", is_public=True)
    return found


def read_document(http: httpx.Client, url: str, path: str, *, is_public: bool) -> list[Route]:
    document = http.get(url + path).raise_for_status().json()
    return [
        Route(method.upper(), url + filled, find_bodies(filled) if is_public else Bodies.JSON)
        for template, calls in document["paths"].items()
        for filled in [re.sub(r"{\w+}", "x1", template)]
        for method in calls
        if method != "parameters"
    ]


def take_stock(site: Site) -> dict[str, Any]:
    """What a stranger could have changed."""
    state = site.cluster.state()
    bookies = next(p["admin_url"] for p in list_services(site.cluster) if p["role"] == "writeproxy")
    urls = {
        "read": state["read_url"] + RECORDS,
        "shown": state["write_url"] + LOG,
        "segments": f"{state['read_url']}{LOG}/segments",
        "rows": f"{bookies}/v1/cluster/bookies",
        "grants": f"{state['write_url']}/v1/grants?scope=default",
        "tokens": f"{state['write_url']}/v1/access-tokens",
    }
    if not site.is_secure:
        del urls["grants"], urls["tokens"]  # which nobody may see there
    with site.open_http() as http:
        found = {name: http.get(url).raise_for_status().json() for name, url in urls.items()}
    return {
        "records": [record["body"] for record in found["read"]["records"]],
        "log": found["shown"],
        "epochs": [segment["epoch"] for segment in found["segments"]["segments"]],
        "drained": re.findall(r"drain\w*", json.dumps(found["rows"])),
        "rights": (found.get("grants"), found.get("tokens")),
        "pids": {process["id"]: process["pid"] for process in state["processes"]},
    }


def test_no_route_of_any_port_is_open_to_a_stranger(site: Site) -> None:
    before = take_stock(site)
    with site.open_http() as http:
        routes = list_routes(site.cluster, http)
    changes = [route for route in routes if route.method != "GET"]
    assert len(changes) > 50 and len(routes) > len(changes) + 80, "or the documents are not whole"
    with site.open_http() as http:
        for route in routes:
            for name, (headers, status) in STRANGE.items():
                answer = http.request(route.method, route.url, headers=headers)
                assert answer.status_code == status, (name, route)
        for route in changes:
            for media in ("text/plain", "application/x-www-form-urlencoded", None):
                if route.bodies is Bodies.OWN or (route.bodies is Bodies.FRAMES and not media):
                    continue
                headers = {} if media is None else {"content-type": media}
                answer = http.request(route.method, route.url, content=b"{}", headers=headers)
                assert answer.status_code == 415, (media, route)
    assert take_stock(site) == before


def test_who_is_no_page_is_served_as_ever(site: Site) -> None:
    """Probes and Prometheus by an address, people by `localhost` or a name that was given."""
    with site.open_http() as http:
        for process in list_services(site.cluster):
            port = httpx.URL(process["admin_url"]).port
            for host in ("127.0.0.1", "10.20.30.40", "[fd00::7]", "localhost", "logs.example.org"):
                headers = {"host": f"{host}:{port}"}
                for path in ("/healthz", "/readyz", "/metrics", "/docs", "/openapi.json"):
                    answer = http.get(process["admin_url"] + path, headers=headers)
                    assert answer.status_code == 200, (process["id"], host, path)
        sequencer = site.cluster.process("sequencer-0")
        assert http.post(sequencer["admin_url"] + "/v1/retention").status_code == 200


ATTACK: Final = """
const types = ["text/plain", "application/x-www-form-urlencoded", null];
const bodies = ["", "{}", '{"to":"tail"}', '{"token":"mine"}', '{"is_on":true}'];
let sent = 0;
async function attack(url, body, type) {
  const blob = new Blob([body], type === null ? {} : { type });
  const signal = AbortSignal.timeout(1000);
  const asked = { method: "POST", mode: "no-cors", credentials: "include", body: blob, signal };
  try { await fetch(url, asked); sent++; } catch (error) { /* held back, or not answered */ }
}
for (const url of targets) {
  const tries = bodies.flatMap((body) => types.map((type) => attack(url, body, type)));
  await Promise.allSettled(tries);
}
// What asks first, and what a page without scripts can do.
for (const url of targets) {
  for (const method of ["PUT", "PATCH", "DELETE"]) {
    const signal = AbortSignal.timeout(1000);
    const headers = { "content-type": "application/json" };
    const asked = { method, body: "{}", headers, signal };
    try { await fetch(url, asked); } catch (error) { /* as it should be */ }
  }
  const frame = document.createElement("iframe");
  frame.name = "hidden";
  document.body.append(frame);
  const form = document.createElement("form");
  Object.assign(form, { action: url, method: "post", enctype: "text/plain", target: "hidden" });
  document.body.append(form);
  // It asks its user for a certificate where a port wants one, and nobody answers.
  const loaded = new Promise((resolve) => { frame.onload = resolve; setTimeout(resolve, 500); });
  form.submit();
  await loaded;
  frame.remove();
}
const seen = [];
for (const url of readable) {
  try { seen.push(await (await fetch(url)).text()); } catch (error) { /* as it should be */ }
}
return { sent, seen };
"""


@pytest.fixture
def browser(tmp_path: Path, site: Site) -> Iterator[Chromium]:
    find_chromium()
    hosts = {STRANGER: "127.0.0.1", "rebound.example": "127.0.0.1"}
    # Its owner may have told it to trust the cluster's CA.
    with running_chromium(tmp_path / "profile", hosts, "--ignore-certificate-errors") as started:
        yield started


def list_targets(cluster: LocalCluster) -> list[str]:
    """What a stranger would like to do most."""
    found = []
    state = cluster.state()
    for verb in (":truncate", ":end", ":fence", ":roll", "/records", ":undelete"):
        found += [f"{state[side]}{LOG}{verb}" for side in ("write_url", "read_url")]
    for process in list_services(cluster):
        admin = process["admin_url"]
        found.append(f"{admin}/v1/drain-and-stop")
        if process["role"] in ("writeproxy", "sequencer"):
            base = f"{admin}/v1/cluster" if process["role"] == "writeproxy" else f"{admin}/v1"
            found += [f"{base}/bookies/bookie-0/drain", f"{base}/rebalance"]
        if process["role"] == "sequencer":
            found.append(f"{process['data_url']}/s/control")
    return found


def test_a_strangers_page_changes_nothing_and_reads_nothing(site: Site, browser: Chromium) -> None:
    before = take_stock(site)
    with site.open_http() as http:
        changes = [r.url for r in list_routes(site.cluster, http) if r.method != "GET"]
    targets = list(dict.fromkeys([*list_targets(site.cluster), *changes]))
    readable = [site.cluster.state()["read_url"] + RECORDS]
    readable += [p["admin_url"] + "/v1/config" for p in list_services(site.cluster)]
    browser.open(f"{site.origin.replace('localhost', STRANGER)}/empty.html")
    known = f"const targets = {json.dumps(targets)}, readable = {json.dumps(readable)};"
    told = browser.run(known + ATTACK)
    assert told["sent"] > len(targets), "the browser holds nothing back: requests were sent"
    assert told["seen"] == []
    assert take_stock(site) == before


def test_a_name_that_resolves_to_us_shows_nothing(site: Site, browser: Chromium) -> None:
    """What a page sees of its own origin, once its name has come to mean our address."""
    urls = [site.cluster.state()["read_url"] + RECORDS]
    urls += [p["admin_url"] + "/v1/config" for p in list_services(site.cluster)]
    for url in urls:
        browser.open(url.replace("127.0.0.1", "rebound.example"))
        text = browser.run("return document.body.innerText")
        assert "misdirected" in text and "kept" not in text and "zookeeper" not in text, url


def test_a_page_of_the_admin_port_goes_on_working(site: Site, browser: Chromium) -> None:
    admin = site.cluster.process("sequencer-0")["admin_url"]
    if site.is_secure:  # the browser has no certificate, so it is nobody
        browser.open(f"{admin}/docs")
        assert "unauthenticated" in browser.run("return document.body.innerText")
        return
    for own in (admin, admin.replace("127.0.0.1", "localhost")):
        browser.open(f"{own}/docs")
        assert "/v1/retention" in browser.run("return document.body.innerText")
        browser.open(f"{own}/v1/config")  # a page of the port's own that may ask something
        asked = "fetch('/v1/retention', {method: 'POST'}).then((answer) => answer.status)"
        assert browser.run(f"return await {asked}") == 200


def test_a_page_of_an_origin_that_was_named_goes_on_working(site: Site, browser: Chromium) -> None:
    """That of the browser's quick start."""
    write = site.cluster.state()["write_url"]
    with site.open_http() as http:
        for path in ("/v1/namespaces/board", "/v1/namespaces/board/logs/prices"):
            http.put(write + path).raise_for_status()
    token = (site.cluster.folder / "token").read_text().strip() if site.is_secure else "any"
    browser.open(f"{site.origin}/live.html")
    shown = browser.run(
        f"""
        document.querySelector("#caller [name=token]").value = "{token}";
        document.querySelector("#caller button").click();
        document.querySelector("#change button").click();
        const list = document.querySelector("#records");
        while (!list.innerText) await new Promise((resolve) => setTimeout(resolve, 50));
        return list.innerText;
        """
    )
    assert shown == '0: {"tea": 2}'
