"""A real API server that knows the custom resources, and a namespace of it for each module.

The definitions are those that are made from the models, not the chart's files: that both are the
same is test_definitions.py's.
"""

from collections.abc import Iterator

import pytest

from duramen_operator.resources.definitions import define_all
from tests.kubernetes.cluster.api_server import open_http
from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.resources.objects import Api
from tests.kubernetes.resources.texts import read_texts


@pytest.fixture(scope="session")
def resource_server(api_server: ClusterHandle) -> ClusterHandle:
    """The API server once it serves all seven kinds."""
    definitions = define_all(read_texts()).values()
    api_server.apply(*definitions)
    names = [f"crd/{definition['metadata']['name']}" for definition in definitions]
    api_server.kubectl("wait", "--for=condition=Established", "--timeout=60s", *names)
    for definition in definitions:
        for name in definition["spec"]["names"].get("shortNames", ()):
            api_server.wait_known(name)
    # kubectl keeps what it discovered first, as it waited, and a short name may have come since.
    api_server.kubectl("api-resources")
    return api_server


@pytest.fixture(scope="module")
def namespace(resource_server: ClusterHandle) -> Iterator[str]:
    """A namespace for a module's objects."""
    with resource_server.namespace() as name:
        yield name


@pytest.fixture(scope="module")
def api(resource_server: ClusterHandle, namespace: str) -> Iterator[Api]:
    """The custom resources of that namespace."""
    server = resource_server
    with open_http(server.url, server.token, server.certificate) as http:
        yield Api(http, namespace)
