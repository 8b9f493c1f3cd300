"""The two ends of `duramen apply` at the server: what is there, and doing what the plan says.

Only what the documents name is read, one thing after the other. A step that succeeded is noted at
once, so that a failure in the middle can say what was done.

Called by `declare.apply`. Source: docs/cli.md "apply".
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from duramen.cli.declare.documents import Wanted
from duramen.cli.declare.plan import ApplyStep, Present, make_plan
from duramen.client.rest_client import RestClient
from duramen.errors import DuramenError

_ABSENT: Final = ("namespace_not_found", "log_not_found", "log_deleted")
"""A deleted log's name is free: a log of that name is another one."""


async def plan_steps(client: RestClient, wanted: list[Wanted]) -> list[ApplyStep]:
    """Read what is there, and plan.

    Raises:
        DocumentsError: a document cannot become true.
        DuramenError, PeerError: what is there is not known.
    """
    present: dict[tuple[str, str], Present] = {}
    for namespace in dict.fromkeys(one.namespace for one in wanted):
        found = await _find(client, f"/v1/namespaces/{quote(namespace)}")
        if found is not None:
            present["Namespace", namespace] = Present(found["config"])
    for one in wanted:
        if one.kind == "Log" and ("Namespace", one.namespace) in present:
            found = await _find(client, _log_path(one))
            if found is not None:
                present["Log", one.name] = Present(found["config"], found["config_version"])
    return make_plan(wanted, present)


async def _find(client: RestClient, path: str) -> dict[str, Any] | None:
    try:
        return await client.get_json(path)
    except DuramenError as error:
        if error.code in _ABSENT:
            return None
        raise


async def carry_out(client: RestClient, steps: list[ApplyStep], done: list[ApplyStep]) -> None:
    """Do what is to be done, in order; `done` gets each step that succeeded.

    Raises:
        DuramenError, PeerError: the first step that failed; all of it is safe to repeat.
    """
    for step in steps:
        wanted = step.wanted
        namespace, _, log = wanted.name.partition("/")
        if step.action == "create" and wanted.kind == "Namespace":
            await client.ensure_namespace(namespace, wanted.config)
        elif step.action == "create":
            await client.ensure_log(namespace, log, wanted.config)
        elif step.action == "change" and wanted.kind == "Namespace":
            await client.reconfigure_namespace(namespace, step.patch())
        elif step.action == "change":
            patch = step.patch()
            await client.reconfigure_log(namespace, log, patch, version=step.version)
        if step.action != "same":
            done.append(step)


def _log_path(wanted: Wanted) -> str:
    namespace, _, log = wanted.name.partition("/")
    return f"/v1/namespaces/{quote(namespace)}/logs/{quote(log)}"
