"""LogGrant: one grant of a cluster, as an object.

A subject is named by the text that a grant has behind its kind, so that what is seen in one place
is found in the other; a service account of Kubernetes by its parts. What an issuer's short name is
says the cluster's issuers file. Whoever writes such objects gives rights: docs/protocol/rights.md
says who may.

Called by the operator, the plugin and `schema`. Source: docs/protocol/rights.md "Grants as objects
of Kubernetes".
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from duramen.core.rights.grants import Grant, PrincipalKind, parse_grant
from duramen.errors import DuramenError
from duramen_operator.resources.part import Label, ObjectName, Part, Resource, ResourceStatus

_ISSUER = "[a-z]([a-z0-9-]{0,30}[a-z0-9])?"
ISSUER_PATTERN = f"^{_ISSUER}$"
USER_PATTERN = f"^{_ISSUER}/[!-~]{{1,255}}$"
GROUP_PATTERN = f"^{_ISSUER}/[^ ](.{{0,253}}[^ ])?$"
TOKEN_PATTERN = "^[a-z2-7]{16}$"
SERVICE_PATTERN = "^[a-z]{1,32}/[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
SCOPE_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(/[A-Za-z0-9][A-Za-z0-9._-]{0,254}[*]?)?$"

SUBJECTS = ("user", "group", "token", "serviceAccount", "service")
"""One of these fields names a subject."""


class SubjectAccount(Part):
    """A service account of Kubernetes."""

    issuer: Annotated[
        str,
        Field(
            max_length=32,
            pattern=ISSUER_PATTERN,
            description="Short name of its API server in the cluster's issuers file.",
        ),
    ] = "k8s"
    namespace: Annotated[
        Label, Field(description="Its namespace in Kubernetes, not one of Duramen.")
    ]
    name: Annotated[ObjectName, Field(description="Its name.")]


class GrantSubject(Part):
    """Who gets the role: exactly one of the fields is named."""

    user: Annotated[
        str | None,
        Field(
            max_length=288,
            pattern=USER_PATTERN,
            description="ISSUER/SUBJECT: whom that issuer's tokens call so in sub.",
        ),
    ] = None
    group: Annotated[
        str | None,
        Field(
            max_length=288,
            pattern=GROUP_PATTERN,
            description="ISSUER/GROUP: every user in whose token that issuer says so.",
        ),
    ] = None
    token: Annotated[
        str | None,
        Field(
            max_length=16,
            pattern=TOKEN_PATTERN,
            description="Id of an access token, without dur1_ and never with its secret.",
        ),
    ] = None
    service_account: Annotated[
        SubjectAccount | None, Field(description="A service account of Kubernetes.")
    ] = None
    service: Annotated[
        str | None,
        Field(
            max_length=97,
            pattern=SERVICE_PATTERN,
            description="ROLE/NAME as in a certificate of this cluster.",
        ),
    ] = None

    @property
    def who(self) -> str:
        """The principal, as grants have it."""
        account = self.service_account
        if account is not None:
            named = f"{account.issuer}/{account.namespace}/{account.name}"
            return f"{PrincipalKind.SERVICE_ACCOUNT}:{named}"
        texts = {
            PrincipalKind.USER: self.user,
            PrincipalKind.GROUP: self.group,
            PrincipalKind.TOKEN: self.token,
            PrincipalKind.SERVICE: self.service,
        }
        return next(f"{kind}:{text}" for kind, text in texts.items() if text is not None)

    @model_validator(mode="after")
    def _check_one(self) -> GrantSubject:
        named = [self.user, self.group, self.token, self.service_account, self.service]
        if sum(one is not None for one in named) != 1:
            raise ValueError(f"name exactly one of {', '.join(SUBJECTS)}")
        return self


class LogGrantSpec(Part):
    """Who has which role on what. It cannot be changed: make a new object."""

    cluster_name: Annotated[
        ObjectName, Field(description="The LogCluster that it is in, in the same namespace.")
    ]
    subject: Annotated[GrantSubject, Field(description="Who gets the role: one of its fields.")]
    role: Annotated[
        Literal["reader", "producer", "writer", "owner", "archiver"],
        Field(
            description="What the subject may do. An owner may also give grants itself, which stay "
            "when this object goes. monitor and operator are of the whole cluster: duramen grant "
            "gives them."
        ),
    ]
    scope: Annotated[
        str,
        Field(
            min_length=1,
            max_length=320,
            pattern=SCOPE_PATTERN,
            description="On what: NAMESPACE of Duramen with all of its logs, NAMESPACE/PREFIX*, or "
            "NAMESPACE/LOG. It need not be there yet.",
        ),
    ]

    @property
    def grant(self) -> Grant:
        """The grant that is to be there."""
        return parse_grant(self.subject.who, self.role, self.scope)

    @model_validator(mode="after")
    def _check_grant(self) -> LogGrantSpec:
        try:
            _ = self.grant
        except DuramenError as error:
            raise ValueError(error.detail) from None
        return self


class LogGrantStatus(ResourceStatus):
    """What became of a grant, and whose it is."""

    who: Annotated[
        str, Field(max_length=600, description="The subject, as duramen grant list shows it.")
    ] = ""
    is_owned: Annotated[
        bool | None,
        Field(
            alias="owned",
            description="Whether the grant is this object's, and goes with it. True without by and "
            "given: it is asked for, and was not there before.",
        ),
    ] = None
    by: Annotated[str, Field(max_length=600, description="Who gave the grant that is there.")] = ""
    given: Annotated[str, Field(max_length=64, description="When it was given.")] = ""


class LogGrant(Resource):
    """A role of somebody on a namespace, on logs of one prefix, or on one log."""

    kind: Literal["LogGrant"] = "LogGrant"
    spec: LogGrantSpec
    status: LogGrantStatus = LogGrantStatus()
