"""The Helm chart, rendered by Helm's own engine, and the schemas of Kubernetes for what it renders."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import helm_python
import kubernetes_validate
import yaml

Object: TypeAlias = dict[str, Any]

CHART: Final = Path(__file__).parents[2] / "charts" / "runyard"
VALUES: Final = Path(__file__).parents[1] / "deployment" / "values"
CASES: Final = tuple(sorted(path.stem for path in VALUES.glob("*.yaml")))
"""The values under which the chart is rendered: the names of the files in VALUES."""
VERSIONS: Final = ("1.35", "1.36", "1.37")
"""The versions of Kubernetes whose schemas the objects must fit."""


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that occurs twice in a mapping, as Kubernetes does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if twice := {key for key in keys if keys.count(key) > 1}:
            raise yaml.constructor.ConstructorError(None, None, f"repeated keys: {sorted(twice)}", node.start_mark)
        return super().construct_mapping(node, deep)


def values(case: str) -> Object:
    """Return the values of a case."""
    return yaml.safe_load((VALUES / f"{case}.yaml").read_text("utf-8")) or {}


@cache
def loaded() -> helm_python.Chart:
    """Return the chart."""
    return helm_python.Chart.load(CHART)


def texts(given: Object) -> list[str]:
    """Return the text of each template's objects in a release with the ``given`` values, hooks included. Raises HelmError for
    values that the chart refuses."""
    loaded().validate_schema(given)
    files = loaded().render(given, name="shop", namespace="agents", revision=3)
    return [text for path, text in sorted(files.items()) if not path.endswith("NOTES.txt")]


def render(given: Object) -> list[Object]:
    """Return the objects of a release with the ``given`` values, hooks included. Raises HelmError for values that the chart
    refuses."""
    return [found for text in texts(given) for found in yaml.load_all(text, _StrictLoader) if found]


@cache
def _rendered(case: str) -> str:
    return json.dumps(render(values(case)))


def rendered(case: str) -> list[Object]:
    """Return the objects of a case."""
    objects: list[Object] = json.loads(_rendered(case))
    return objects


def of_kind(objects: Iterable[Object], kind: str) -> dict[str, Object]:
    """Return the objects of a kind by name."""
    return {found["metadata"]["name"]: found for found in objects if found["kind"] == kind}


def pods(objects: Iterable[Object]) -> Iterator[tuple[str, Object]]:
    """Yield the name and the spec of each pod: of deployments, of jobs, and of the test."""
    for found in objects:
        if found["kind"] == "Pod":
            yield found["metadata"]["name"], found["spec"]
        elif found["kind"] in ("Deployment", "Job"):
            yield found["metadata"]["name"], found["spec"]["template"]["spec"]


def containers(objects: Iterable[Object]) -> Iterator[tuple[str, Object]]:
    """Yield ``pod/container`` and the container."""
    for name, spec in pods(objects):
        for container in spec["containers"]:
            yield f"{name}/{container['name']}", container


def is_custom(found: Object) -> bool:
    """Return True for an object of a custom resource, which Kubernetes itself has no schema for."""
    group = found["apiVersion"].rpartition("/")[0]
    return ("." in group and not group.endswith(".k8s.io")) or group.startswith("gateway.")


def misfits(objects: Iterable[Object], version: str) -> list[str]:
    """Return what is wrong with objects of Kubernetes itself, by its strict schemas. A field without a meaning is wrong."""
    found = []
    for each in objects:
        try:
            kubernetes_validate.validate(each, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            path = ".".join(map(str, error.absolute_path))
            found.append(f"{each['kind']} {each['metadata']['name']}, {path}: {error.message}")
    return found
