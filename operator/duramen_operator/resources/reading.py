"""Reads objects of the API server as models, and says what is wrong with those that are not.

The API server has checked an object when it was written, by the schema of that day. An object that
is older than the schema, or a schema older than the operator, is why reading can still fail: then
all faults are told at once, each with its field as `kubectl explain` names it.

Called by whoever has an object: operator and plugin.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from duramen.config import ConfigFault, faults_of
from duramen_operator.resources.archives import ArchivePolicy
from duramen_operator.resources.bookies import Bookie, BookieSet
from duramen_operator.resources.clusters import LogCluster
from duramen_operator.resources.grants import LogGrant
from duramen_operator.resources.logs import LogNamespace, LogResource
from duramen_operator.resources.part import API_VERSION, Resource

AnyResource = (
    LogCluster | BookieSet | Bookie | LogNamespace | LogResource | LogGrant | ArchivePolicy
)
KINDS: Final[Mapping[str, type[AnyResource]]] = {
    "LogCluster": LogCluster,
    "BookieSet": BookieSet,
    "Bookie": Bookie,
    "LogNamespace": LogNamespace,
    "Log": LogResource,
    "LogGrant": LogGrant,
    "ArchivePolicy": ArchivePolicy,
}

R = TypeVar("R", bound=Resource)


class ResourceError(Exception):
    """An object that is no valid custom resource of ours.

    Attributes:
        name: `LogCluster shop/demo`, as far as it is known.
        faults: each fault with its field.
    """

    def __init__(self, name: str, faults: tuple[ConfigFault, ...]) -> None:
        self.name = name
        self.faults = faults
        told = "; ".join(
            f"{fault.field}: not a known field" if fault.is_unknown else _format(fault)
            for fault in faults
        )
        super().__init__(f"{name}: {told}")


def parse(document: Mapping[str, Any]) -> AnyResource:
    """An object as the model of its kind.

    Raises:
        ResourceError: it is none of the seven kinds, or not valid.
    """
    kind = str(document.get("kind"))
    model = KINDS.get(kind)
    if model is None:
        known = ", ".join(KINDS)
        fault = ConfigFault("kind", f"{kind!r} is none of {known}", is_unknown=False)
        raise ResourceError(_name(document), (fault,))
    return parse_as(model, document)


def parse_as(model: type[R], document: Mapping[str, Any]) -> R:
    """An object as this model. A list's items, which have no kind of their own, are read too.

    Raises:
        ResourceError: it is of another kind, or not valid.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise ResourceError(_name(document), faults_of(error)) from None


def _format(fault: ConfigFault) -> str:
    return f"{fault.field}: {fault.message}" if fault.field else fault.message


def _name(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    found = metadata if isinstance(metadata, Mapping) else {}
    parts = [str(found[key]) for key in ("namespace", "name") if found.get(key)]
    return f"{document.get('kind') or API_VERSION} {'/'.join(parts) or '(no name)'}"
