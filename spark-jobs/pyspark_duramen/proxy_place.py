"""The proxy that a job reads or writes through, and what it is shown.

Options travel in plans, event logs and pages of Spark, so they name files: each task reads the
token where it runs, and anew when it changed.

Called by `options`, by the catalog and by each task. Source: docs/spark.md "Who asks who you are".
"""

from __future__ import annotations

from typing import NamedTuple

from duramen.client.credentials.credential import make_credential
from duramen.client.rest_client import RestClient


class ProxyPlace(NamedTuple):
    """Where a proxy is.

    Attributes:
        token_file: a file with the token to show; None: nobody asks for one.
        ca_file: the anchors that alone are trusted; None: the system's.
    """

    url: str
    token_file: str | None = None
    ca_file: str | None = None

    def open(self) -> RestClient:
        """A client, over HTTP/2.

        Raises:
            DuramenError: `invalid_argument`: the token would travel in plain text;
                `unauthenticated`: a file cannot be used.
        """
        credential = make_credential(token_file=self.token_file, ca=self.ca_file)
        return RestClient(self.url, has_http2=True, credential=credential)
