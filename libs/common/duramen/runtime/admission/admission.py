"""All that a public port judges by: who is known, what is granted, and the calls that last.

Made at the start of a proxy that has an identity; without one nobody is asked. While what is known
may be wrong nobody is let in and nobody refused: that is an answer of its own.

Called by both proxies; the door is `public_door`. Source: docs/protocol/rights.md "How grants reach
processes", docs/protocol/credentials.md "Who it is".
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from duramen.core.rights.judgement import Rights
from duramen.errors import DuramenError
from duramen.runtime.admission.callers import AdmittedCall, ShownCredentials
from duramen.runtime.admission.identification import Identification
from duramen.runtime.admission.lasting_calls import Judgement, LastingCalls
from duramen.runtime.admission.refusals import refuse_blindly, refuse_unknown, refuse_verb
from duramen.runtime.credentials.access_tokens.token_table import TokenTable
from duramen.runtime.credentials.clients import ClientCredentials
from duramen.runtime.credentials.issuers import Issuer, IssuersFileError, read_issuers
from duramen.runtime.credentials.key_sources import KeysUnreadableError
from duramen.runtime.credentials.principals import (
    Bearer,
    CredentialRefusedError,
    NothingKnownError,
)
from duramen.runtime.credentials.web_bearers import WebBearers
from duramen.runtime.role import ServiceOptions, StartRefusedError
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.wire.edge.gate import is_here
from duramen.wire.metadata_json import Paths


class ClientAdmission:
    """What one process knows of its callers and of their rights.

    Attributes:
        tally: where its door counts whom it would refuse; None: it refuses them.
    """

    def __init__(
        self,
        store: MetadataStore,
        paths: Paths,
        security: ProcessSecurity,
        issuers: tuple[Issuer, ...],
    ) -> None:
        self.tally = security.tally
        self._rights = security.rights
        self._tokens = TokenTable(store, paths)
        self._web_bearers = WebBearers(issuers)
        self._credentials = ClientCredentials(self._tokens, self._web_bearers)
        self._identification = Identification(self._credentials, self._tokens, security.clients)
        self._trust_count = 0
        security.on_change(self._on_trust)
        self.lasting = LastingCalls(self._judge_at_once, self._review, self._find_basis)

    async def start(self) -> None:
        """Know everybody and all grants; waits for ZooKeeper as long as it takes.

        Raises:
            StartRefusedError: an issuer's file of keys cannot be used.
        """
        try:
            await self._web_bearers.start()
        except KeysUnreadableError as error:
            raise StartRefusedError(str(error)) from None
        await self._tokens.start()
        await self._rights.wait_first_look()
        self.lasting.start()

    async def stop(self) -> None:
        """Follow nothing any more."""
        await self.lasting.stop()
        await self._tokens.stop()
        await self._web_bearers.stop()

    async def identify(self, shown: ShownCredentials, now: dt.datetime) -> Bearer:
        """See `Identification.identify`."""
        return await self._identification.identify(shown, now)

    def find_rights(self, bearer: Bearer) -> Rights:
        """What a caller may do now; see `GrantCache.rights_of`."""
        return self._rights.rights_of(*bearer.principals, scopes=bearer.scopes)

    def statistics(self) -> dict[str, Any]:
        """Every table and counter."""
        return {
            "credentials": self._credentials.statistics(),
            "lasting": self.lasting.statistics(),
        }

    def _judge_at_once(self, call: AdmittedCall) -> Judgement:
        """Of somebody about whom an issuer has to be asked: what it may do if it counts still."""
        now = dt.datetime.now(dt.UTC)
        try:
            known = self._identification.find_again(call.shown, now)
            if known is None and now.timestamp() >= call.bearer.ends_s:
                return Judgement(refuse_unknown(), is_known=True)
            call.bearer = known or call.bearer
            return Judgement(_judge(call), known is not None)
        except (CredentialRefusedError, DuramenError) as error:
            return Judgement(_explain(error), is_known=True)

    async def _review(self, call: AdmittedCall) -> DuramenError | None:
        now = dt.datetime.now(dt.UTC)
        try:
            call.bearer = await self._identification.identify(call.shown, now)
            return _judge(call)
        except (CredentialRefusedError, DuramenError) as error:
            return _explain(error)

    def _find_basis(self) -> object:
        changes = self._tokens.change_count, self._web_bearers.change_count, self._trust_count
        return self._rights.find_table(), *changes

    def _on_trust(self) -> None:
        self._trust_count += 1


def _explain(error: CredentialRefusedError | DuramenError) -> DuramenError:
    """Why a call may not go on, as its client is told."""
    match error:
        case NothingKnownError():
            return refuse_blindly()
        case CredentialRefusedError():
            return refuse_unknown()
    return error


def _judge(call: AdmittedCall) -> DuramenError | None:
    """Why a call may not go on; None: it may.

    Raises:
        DuramenError: `metadata_unavailable`: nobody can say.
    """
    found = call.found
    if found is None or call.is_allowed():
        return None
    return refuse_verb(found.row.verb, found.namespace, found.log)


def open_admission(
    options: ServiceOptions, store: MetadataStore, security: ProcessSecurity | None
) -> ClientAdmission | None:
    """The admission that a proxy is started with; None: it has no identity, and asks nobody.

    Raises:
        StartRefusedError: its public port would show credentials to a network, or its issuers are
            not usable.
    """
    if security is None:
        return None
    if options.public_tls_dir is None and not is_here(options.host):
        raise StartRefusedError(
            f"--host {options.host} would take its clients' credentials over a network in plain "
            "text: give --public-tls-dir, or listen on 127.0.0.1"
        )
    issuers: tuple[Issuer, ...] = ()
    if options.issuers is not None:
        try:
            issuers = read_issuers(options.issuers)
        except IssuersFileError as error:
            raise StartRefusedError(str(error)) from None
    return ClientAdmission(store, Paths(options.cluster), security, issuers)
