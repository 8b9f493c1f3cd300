"""Admin routes of a sequencer about whose the logs are: story and hand-over, by name.

The same as the control calls of `hand_over`, for a person with a browser or curl at one sequencer;
tools use the write proxy's `/v1/cluster/…`, which finds the right sequencer.

Called by `service`. Source: docs/protocol/ownership.md "Through one address".
"""

from __future__ import annotations

from fastapi import FastAPI

from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError
from duramen.ids import LogId
from duramen.runtime.public.cluster_answers import (
    EventAnswer,
    HandedOverAnswer,
    OwnStoryAnswer,
)
from duramen.runtime.rights.route_verbs import needs
from duramen.runtime.stores.metadata_store import MetadataError, MetadataStore
from duramen.texts import check_log_name, check_namespace
from duramen.wire.metadata_json import MetadataJsonError, Paths, read_node
from duramen_sequencer.log_host import LogHost
from duramen_sequencer.ownership.hand_over import HandOver


def add_ownership_routes(
    app: FastAPI, host: LogHost, hand_over: HandOver, store: MetadataStore, paths: Paths
) -> None:
    """Add `GET …/story` and `POST …/hand-over` to the admin application."""

    async def find(namespace: str, log: str) -> LogId:
        path = paths.name(check_namespace(namespace), check_log_name(log))
        try:
            found = await store.get(path)
        except MetadataError as error:
            raise DuramenError("metadata_unavailable", f"ZooKeeper: {error}") from error
        if found is None:
            raise DuramenError("log_not_found", f"there is no log {namespace}/{log}", field="log")
        try:
            return LogId(int(read_node(found.data)["log_id"]))
        except (MetadataJsonError, KeyError, ValueError, TypeError) as error:
            raise DuramenError("internal", f"{namespace}/{log}: {error!r}") from error

    @app.get(
        "/v1/logs/{namespace}/{log}/story", **needs(Verb.OBSERVE), response_model_exclude_unset=True
    )
    async def get_story(namespace: str, log: str) -> OwnStoryAnswer:
        told = host.stories.report(await find(namespace, log))
        events = [EventAnswer(**event) for event in told]
        return OwnStoryAnswer(sequencer=host.sequencer_id, events=events)

    @app.post("/v1/logs/{namespace}/{log}/hand-over", **needs(Verb.OPERATE))
    async def post_hand_over(namespace: str, log: str, to: str | None = None) -> HandedOverAnswer:
        done = await hand_over.hand_over(await find(namespace, log), to)
        return HandedOverAnswer.model_validate(done)
