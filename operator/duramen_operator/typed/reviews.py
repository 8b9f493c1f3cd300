"""Asks the API server what the operator may do, and gives what it needs and may not.

One question lists the rules that apply (SelfSubjectRulesReview). The list may be incomplete, which
the API allows, so a right that it does not show is asked for by itself (SelfSubjectAccessReview):
that answer counts. Every account may ask both; neither needs a right of the chart's Role.

Called by `serving.rights_check`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kubernetes.aio.client import (
    ApiClient,
    AuthorizationV1Api,
    V1ResourceAttributes,
    V1ResourceRule,
    V1SelfSubjectAccessReview,
    V1SelfSubjectAccessReviewSpec,
    V1SelfSubjectRulesReview,
    V1SelfSubjectRulesReviewSpec,
)

from duramen_operator.rights import Right
from duramen_operator.typed.client import TypedClient

_ANY = "*"


@dataclass(frozen=True, slots=True)
class MissingRight:
    """What is needed of one kind of object and not granted."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        kind = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{', '.join(self.verbs)} {kind} ({self.why})"


async def find_missing_rights(
    client: TypedClient, namespace: str, rights: Iterable[Right]
) -> tuple[MissingRight, ...]:
    """The rights that the API server does not grant in a namespace, in the order they are asked.

    Raises:
        Refused, Unreachable: it was not said.
    """
    rules = await _list_rules(client, namespace)
    missing = []
    for right in rights:
        for resource in right.resources:
            hidden = [verb for verb in right.verbs if not _is_shown(rules, right, resource, verb)]
            verbs = [
                verb
                for verb in hidden
                if not await _may(client, namespace, right.group, resource, verb)
            ]
            if verbs:
                missing.append(MissingRight(right.group, resource, tuple(verbs), right.why))
    return tuple(missing)


async def _list_rules(client: TypedClient, namespace: str) -> Sequence[V1ResourceRule]:
    spec = V1SelfSubjectRulesReviewSpec(namespace=namespace)

    async def create(api: ApiClient) -> V1SelfSubjectRulesReview:
        body = V1SelfSubjectRulesReview(spec=spec)
        return await AuthorizationV1Api(api).create_self_subject_rules_review(body)

    status = (await client.call(create)).status
    return status.resource_rules if status is not None else ()


async def _may(client: TypedClient, namespace: str, group: str, resource: str, verb: str) -> bool:
    plural, _, subresource = resource.partition("/")
    wanted = V1ResourceAttributes(
        namespace=namespace,
        verb=verb,
        group=group,
        resource=plural,
        subresource=subresource or None,
    )

    async def create(api: ApiClient) -> V1SelfSubjectAccessReview:
        spec = V1SelfSubjectAccessReviewSpec(resource_attributes=wanted)
        body = V1SelfSubjectAccessReview(spec=spec)
        return await AuthorizationV1Api(api).create_self_subject_access_review(body)

    status = (await client.call(create)).status
    return status is not None and status.allowed


def _is_shown(rules: Sequence[V1ResourceRule], right: Right, resource: str, verb: str) -> bool:
    """Whether a rule grants it for every object, whatever its name."""
    return any(
        not rule.resource_names
        and not {verb, _ANY}.isdisjoint(rule.verbs)
        and not {right.group, _ANY}.isdisjoint(rule.api_groups or ())
        and not {resource, _ANY}.isdisjoint(rule.resources or ())
        for rule in rules
    )
