"""`duramen bookies` and `duramen regions`: who stores data, where, and what takes new ones.

Thin over `/v1/cluster/bookies` and `/v1/cluster/regions` on a write proxy's admin port: what it
answers is what `--json` prints. Nothing is decided here.

Called by `cli.main`. Source: docs/cli.md, docs/protocol/placement.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Annotated, Any, Final
from urllib.parse import quote

from cyclopts import App, Parameter

from duramen.cli.arguments import AdminUrlOption, BookieText, DataOption, JsonOption
from duramen.cli.command import (
    DATA_DEFAULT,
    ExitCode,
    UsageError,
    call_admin,
    print_json,
    show_rows,
)
from duramen.client.rest_client import RestClient
from duramen.units import MIB, format_size

bookies_app = App(name="bookies", help="List the bookies; say where one is and what it should get.")
regions_app = App(name="regions", help="List the regions; close and open them for new data.")

_BOOKIE_COLUMNS: Final = (
    "id", "region", "rack", "state", "free", "weight", "duty", "doubtful", "new data", "steady",
    "incarnation",
)  # fmt: skip
_REGION_COLUMNS: Final = ("region", "bookies", "takes_new_data", "closed")
_REGIONS_PATH: Final = "/v1/cluster/regions"


@bookies_app.default
def bookies(
    *, url: AdminUrlOption = None, data: DataOption = DATA_DEFAULT, json: JsonOption = False
) -> int:
    """List the bookies that live or were registered.

    Exit codes: 0 listed; 1 refused or failed; 2 usage.
    """
    answer = call_admin(url, data, lambda client: client.get_json("/v1/cluster/bookies"))
    if json:
        print_json(answer)
        return ExitCode.OK
    rows = [
        {
            **row,
            "free": None if free is None else format_size(free // MIB * MIB),
            "doubtful": "yes" if row["doubtful"] else None,
            "new data": "yes" if row["takes_new_data"] else "no",
            "steady": f"in {left_s} s" if (left_s := row.get("steady_in_s")) else "yes",
        }
        for row in answer["bookies"]
        for free in (row["free_bytes"],)
    ]
    show_rows(
        {"bookies": rows}, "bookies", _BOOKIE_COLUMNS, is_json=False, droppable=("incarnation",)
    )
    return ExitCode.OK


@bookies_app.command
def locate(
    bookie: BookieText,
    /,
    *,
    region: str | None = None,
    rack: str | None = None,
    storage_capacity: Annotated[
        float | None,
        Parameter(name=["--storage-capacity", "--weight"], help="its share of new data; 0: none"),
    ] = None,
    from_flags: Annotated[
        bool, Parameter(negative="", help="leave its place to its own flags again")
    ] = False,
    url: AdminUrlOption = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Say where a bookie is, and what share of new data it should get; in force at once.

    A place that is said here stays when the bookie restarts, whatever its flags say; with
    --from-flags they count again, from its next start on.

    Data that lie there already stay: `duramen placement check` shows what breaks the rule now.

    Exit codes: 0 changed; 1 refused or failed; 2 usage.
    """
    # By its older name: the cluster may be of a version that knows no other.
    wanted = {"region": region, "rack": rack, "weight": storage_capacity}
    change: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    if from_flags:
        change["from_flags"] = True
    if not change:
        raise UsageError("give --region, --rack or --storage-capacity, or --from-flags")
    path = f"/v1/cluster/bookies/{quote(bookie, safe='')}"
    answer = call_admin(url, data, lambda client: client.change_json("PATCH", path, change))
    if json:
        print_json(answer)
    else:
        place = f"region {answer['region']}, rack {answer['rack']}, weight {answer['weight']}"
        later = "; its flags count from its next start on" if from_flags else ""
        print(f"{answer['id']}: {place}{later}")
    return ExitCode.OK


@regions_app.default
def regions(
    *, url: AdminUrlOption = None, data: DataOption = DATA_DEFAULT, json: JsonOption = False
) -> int:
    """List the regions.

    Exit codes: 0 listed; 1 refused or failed; 2 usage.
    """
    answer = call_admin(url, data, lambda client: client.get_json(_REGIONS_PATH))
    show_rows(answer, "regions", _REGION_COLUMNS, is_json=json)
    return ExitCode.OK


@regions_app.command
def close(
    region: str, /, *, url: AdminUrlOption = None, data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:  # fmt: skip
    """Let no new data go to a region; what is there stays and is read.

    Exit codes: 0 closed; 1 refused or failed; 2 usage.
    """
    return _change(url, data, lambda closed: {*closed, region}, is_json=json)


@regions_app.command(name="open")
def reopen(
    region: str, /, *, url: AdminUrlOption = None, data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:  # fmt: skip
    """Let new data go to a region again.

    Exit codes: 0 open; 1 refused or failed; 2 usage.
    """
    return _change(url, data, lambda closed: {*closed} - {region}, is_json=json)


def _change(
    url: str | None,
    data: Any,
    change: Callable[[Collection[str]], Collection[str]],
    *,
    is_json: bool,
) -> int:
    async def use(client: RestClient) -> dict[str, Any]:
        before = await client.get_json(_REGIONS_PATH)
        body = {"closed": sorted(change(before["closed"]))}
        return await client.change_json("PUT", _REGIONS_PATH, body)

    answer = call_admin(url, data, use)
    show_rows(answer, "regions", _REGION_COLUMNS, is_json=is_json)
    return ExitCode.OK
