"""What all models of custom resources are made of: frozen parts, names, quantities, conditions.

Python says `journal_file_size`, objects say `journalFileSize`; only the fields of a log's
configuration keep their snake_case names, so that a configuration can be pasted from REST or the
command line (ADR 0019). Specs refuse what they do not know; statuses overlook it, since an older
operator may read what a newer one wrote.

Called by the models beside this module; `schema` turns them into what the API server checks.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from duramen.config import LogConfig

GROUP: Final = "duramen.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

_SNAKE_NAMES: Final = frozenset(LogConfig.model_fields) | {"auto_create"}

QUANTITY_PATTERN: Final = "^[0-9]{1,15}(\\.[0-9]{1,9})?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
LABEL_PATTERN: Final = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_HOST_LABEL: Final = "([-a-z0-9]{0,61}[a-z0-9])?"
HOST_PATTERN: Final = f"^([a-z0-9]{_HOST_LABEL}\\.)*[a-z]{_HOST_LABEL}$"
NAME_PATTERN: Final = "^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$"


def _alias(name: str) -> str:
    return name if name in _SNAKE_NAMES else to_camel(name)


def _read_quantity(value: object) -> object:
    """YAML reads `cpu: 2` and `cpu: 0.5` as numbers."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number else value


Quantity = Annotated[
    str,
    BeforeValidator(_read_quantity),
    Field(pattern=QUANTITY_PATTERN),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "pattern": QUANTITY_PATTERN}),
]
"""An amount as Kubernetes writes it: "20Gi", "500m", 2."""

Label = Annotated[str, Field(min_length=1, max_length=63, pattern=LABEL_PATTERN)]
HostName = Annotated[str, Field(min_length=1, max_length=253, pattern=HOST_PATTERN)]
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=NAME_PATTERN)]


class Part(BaseModel):
    """A piece of a spec: frozen, named in camelCase outside, without unknown fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=_alias, populate_by_name=True
    )

    def to_json(self) -> dict[str, Any]:
        """As it was written: fields that were not named are not named here either."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class StatusPart(Part):
    """A piece of a status: as `Part`, and what it does not know it overlooks."""

    model_config = ConfigDict(extra="ignore")

    def to_json(self) -> dict[str, Any]:
        """All that is known: fields that are None are left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Requirements(Part):
    """What a container asks for and may use at most."""

    requests: Annotated[
        dict[str, Quantity],
        Field(
            max_length=16,
            description='What is set aside for it, such as {cpu: "500m", memory: 1Gi}.',
        ),
    ] = {}
    limits: Annotated[
        dict[str, Quantity],
        Field(
            max_length=16, description="What it may use at most; beyond its memory it is killed."
        ),
    ] = {}


StorageSize = Annotated[
    str, Field(max_length=32, description='How large the volume is, such as "20Gi".')
]


class StorageSpec(Part):
    """A claim for a volume. It cannot be changed: a StatefulSet keeps its claims as they are."""

    size: StorageSize
    storage_class_name: Annotated[
        ObjectName | None,
        Field(description="StorageClass of the volume. Left out: the default one of the cluster."),
    ] = None


class LocalReference(Part):
    """Another object in the same namespace, by its name."""

    name: Annotated[ObjectName, Field(description="Name of the object.")]


ConditionStatus = Literal["True", "False", "Unknown"]


class Condition(StatusPart):
    """One thing that is so, is not so, or is not known, and why."""

    type: Annotated[str, Field(max_length=63, description="What it is about, such as Ready.")]
    status: Annotated[ConditionStatus, Field(description="True, False or Unknown.")]
    reason: Annotated[
        str, Field(max_length=128, description="Why, in one word for programs, in CamelCase.")
    ]
    message: Annotated[
        str, Field(max_length=32768, description="Why, in a sentence for people, and what to do.")
    ] = ""
    observed_generation: Annotated[
        int, Field(ge=0, description="metadata.generation that this was said of.")
    ] = 0
    last_transition_time: Annotated[
        str,
        Field(description="When `status` last changed."),
        WithJsonSchema({"type": "string", "format": "date-time"}),
    ] = "1970-01-01T00:00:00Z"


class ResourceStatus(StatusPart):
    """What every status has."""

    observed_generation: Annotated[
        int,
        Field(
            ge=0,
            description="metadata.generation that the operator has seen. Less than "
            "metadata.generation: it has not come to the last change yet.",
        ),
    ] = 0
    conditions: Annotated[
        tuple[Condition, ...],
        Field(description="What is so, is not so, or is not known yet, each with its reason."),
    ] = ()

    def find(self, condition_type: str) -> Condition | None:
        """The condition of a type, if it was ever said."""
        return next((c for c in self.conditions if c.type == condition_type), None)


class OwnerReference(StatusPart):
    """Who an object belongs to."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False


class Metadata(StatusPart):
    """What the API server keeps about an object; what Duramen does not use is overlooked."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()
    creation_timestamp: datetime.datetime | None = None
    deletion_timestamp: datetime.datetime | None = None


class Resource(Part):
    """A custom resource: `spec` is what people want, `status` what the operator found."""

    model_config = ConfigDict(extra="ignore")

    api_version: Literal["duramen.io/v1alpha1"] = "duramen.io/v1alpha1"
    metadata: Metadata = Metadata()

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return self.metadata.name

    @property
    def is_going(self) -> bool:
        """Whether somebody has asked for its deletion."""
        return self.metadata.deletion_timestamp is not None
