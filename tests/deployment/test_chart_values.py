"""The values of the chart: each is known, has an effect, and is refused if it cannot work."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any, Final

import helm_python
import pytest
import yaml

from tests.support import chart
from tests.support.chart import Object

DEFAULTS: Final[Object] = yaml.safe_load((chart.CHART / "values.yaml").read_text("utf-8"))
SCHEMA: Final[Object] = json.loads((chart.CHART / "values.schema.json").read_text("utf-8"))
CHANGED_TEXTS: Final = {
    "digest": "sha256:" + "a" * 64, "pullPolicy": "Never", "app": "other:app", "whenUnsatisfiable": "DoNotSchedule",
    "type": "NodePort", "request": "9s", "backendRequest": "9s", "interval": "9s",
}  # fmt: skip
"""Another admissible text for each value that takes only some texts."""


TEXT_LISTS: Final = {"hostnames", "keys", "pullSecrets", "queues"}
"""Values that are lists of texts. The other lists are of objects."""


def nested(*names: str, value: Any) -> Object:
    """Return values with one value, under its path."""
    for name in reversed(names):
        value = {name: value}
    return value  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "given",
    [
        nested("worker", "replica", value=3),
        nested("workers", "gpu", "slot", value=4),
        nested("monitoring", "podmonitor", "enabled", value=True),
        nested("networkpolicy", value={}),
        nested("worker", "replicas", value="3"),
        nested("worker", "slots", value=0),
        nested("worker", "grace", value=-1),
        nested("worker", "queues", value=["default'); DROP SCHEMA runyard; --"]),
        nested("worker", "queues", value=["a,b"]),
        nested("worker", "podDisruptionBudget", "maxUnavailable", value=0),
        nested("worker", "podDisruptionBudget", "maxUnavailable", value="0%"),
        nested("worker", "autoscaling", "slotsPercent", value=101),
        nested("workers", "GPU_1", value={}),
        nested("workers", "a-group-with-a-long-name", value={}),
        nested("api", "maxStream", value=0),
        nested("api", "port", value=70_000),
        nested("image", "digest", value="sha256:abc"),
        nested("image", "pullPolicy", value="Sometimes"),
        nested("app", value="shop.agents"),
        nested("existingSecret", value="Not A Name"),
        nested("env", value={"NOT-A-NAME": "1"}),
        nested("podSecurityContext", "runAsUser", value=0),
        nested("podSecurityContext", "runAsNonRoot", value=False),
        nested("gateway", "timeouts", "request", value="never"),
        nested("podLabels", value={"app.kubernetes.io/component": "other"}),
        nested("monitoring", "podMonitor", "labels", value={"app.kubernetes.io/name": "other"}),
        nested("serviceAccount", "annotations", value={"helm.sh/hook": "post-install"}),
        nested("image", "repository", value="registry.example:5000/agents:latest"),
        nested("monitoring", "prometheusRule", "runbooks", value="https://docs.example/ # "),
    ],
    ids=json.dumps,
)
def test_the_schema_refuses(given: Object) -> None:
    with pytest.raises(helm_python.HelmValuesError):
        chart.render(given)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"existingSecret": ""}, "set existingSecret, or postgres.existingSecret and redis.existingSecret"),
        ({"existingSecret": "", "redis": {"existingSecret": "cache"}}, "no secret has the URLs"),
        (
            nested("worker", "autoscaling", value={"enabled": True, "minReplicas": 3, "maxReplicas": 2}),
            "minReplicas is greater",
        ),
        (nested("api", "autoscaling", value={"enabled": True, "minReplicas": 11}), "minReplicas is greater"),
        ({"workers": {"a": {"queues": ["a"], "autoscaling": {"enabled": True, "minReplicas": 0}}}}, "may have no pod"),
        ({"gateway": {"enabled": True}}, "name the Gateway of the route"),
        ({"api": {"port": 9100}}, "are the same port"),
        ({"workers": {"a": {"env": {"RUNYARD_GRACE": 300}}}}, "set worker.grace"),
        ({"env": {"RUNYARD_METRICS_PORT": 1}}, "set worker.port"),
        ({"env": {"RUNYARD_SLOTS": 1}}, "set worker.slots"),
        ({"worker": {"env": {"RUNYARD_QUEUES": "gpu"}}}, "set worker.queues"),
        ({"extraEnv": [{"name": "RUNYARD_GRACE", "value": "300"}]}, "set worker.grace"),
        ({"env": {"RUNYARD_POSTGRES_URL": "postgresql://a:b@c/d"}}, "put it into a secret"),
        ({"extraEnv": [{"name": "RUNYARD_API_TOKEN_SECRET", "value": "x"}]}, "put it into a secret"),
        ({"fullnameOverride": "1shop"}, "set fullnameOverride"),
    ],
)
def test_values_that_contradict_each_other_are_refused_with_a_remedy(given: Object, reason: str) -> None:
    with pytest.raises(helm_python.HelmRenderError, match=reason):
        chart.render(given)


@pytest.mark.parametrize(
    ("value", "text"),
    [(20971520, "20971520"), (0.05, "0.05"), (True, "true"), ("1e7", "1e7"), ('a"b\n- c', 'a"b\n- c')],
)
def test_a_variable_is_what_was_given(value: object, text: str) -> None:
    """Helm reads numbers as floats, and would print 20971520 as 2.097152e+07, which is no integer to a setting."""
    objects = chart.render({"env": {"GIVEN": value}})
    found = [e["value"] for _, container in chart.containers(objects) for e in container.get("env", ()) if e["name"] == "GIVEN"]
    assert found and set(found) == {text}


@pytest.mark.parametrize(
    "given",
    [
        {"workers": {"1": {"queues": ["a"]}, "true": {"queues": ["b"]}}},
        nested("podSecurityContext", value=None),
        nested("podSecurityContext", value={"runAsUser": None, "runAsGroup": None, "fsGroup": None}),
        nested("podAnnotations", value={"prometheus.io/scrape": "false"}),
        {"fullnameOverride": "on", "monitoring": {"prometheusRule": {"enabled": True}}},
        {"fullnameOverride": "shop.agents"},
    ],
    ids=json.dumps,
)
def test_values_that_yaml_could_misread(given: Object) -> None:
    """The objects are valid, and a Service has a name that it may have."""
    objects = chart.render(given)
    assert chart.misfits((found for found in objects if not chart.is_custom(found)), chart.VERSIONS[0]) == []
    assert all(isinstance(found["metadata"]["name"], str) for found in objects)
    assert all(re.fullmatch(r"[a-z][-a-z0-9]*", name) for name in chart.of_kind(objects, "Service"))


def test_a_role_of_the_workers_gets_its_rights_with_each_migration() -> None:
    """A release may add functions, which the role could not call."""
    [job] = chart.of_kind(chart.render({"migrate": {"existingSecret": "owner", "grantTo": 'app"x'}}), "Job").values()
    assert job["spec"]["template"]["spec"]["containers"][0]["args"] == ["migrate", '--grant-to=app"x']


def test_values_and_schema_name_the_same_values() -> None:
    assert set(leaves(DEFAULTS)) == set(described(SCHEMA)) - {("global",)}


def test_no_object_of_the_schema_admits_an_unknown_name() -> None:
    """Except the parts that are handed on to Kubernetes or to processes: maps of texts and fragments of a pod."""
    loose = [
        path for path, part in objects_of(SCHEMA)
        if "properties" in part and part.get("additionalProperties") is not False
    ]  # fmt: skip
    assert loose == []


def test_each_value_changes_something_that_is_rendered() -> None:
    """In one of the cases at least. A value without an effect is a promise that the chart does not keep."""
    idle = set(leaves(DEFAULTS))
    for case in chart.CASES:
        full = chart.loaded().merge_values(chart.values(case))
        before = without_generated(chart.texts(full))
        for path in sorted(idle):
            changed = copy.deepcopy(full)
            part = changed
            for name in path[:-1]:
                part = part[name]
            part[path[-1]] = another(path[-1], part[path[-1]])
            try:
                differs = without_generated(chart.texts(changed)) != before
            except helm_python.HelmRenderError:  # refused in this combination, which is an effect, too
                differs = True
            if differs:
                idle.discard(path)
    assert idle == set()


def leaves(part: Object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each value. A map of free names (``env``, ``annotations``) is one value."""
    for name, value in part.items():
        if isinstance(value, dict) and name not in FREE:
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name)


FREE: Final = {
    "affinity", "annotations", "env", "labels", "limits", "nodeSelector", "podAnnotations", "podLabels",
    "podSecurityContext", "requests", "workers",
}  # fmt: skip
"""Names of values that are maps of free names."""


def described(schema: Object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each value that the schema describes."""
    for name, part in schema["properties"].items():
        if "$ref" in part:
            part = SCHEMA["definitions"][part["$ref"].rpartition("/")[2]]
        if "properties" in part and name not in FREE:
            yield from (found for found in described(part, (*path, name)) if found[-1] != "claims")
        else:
            yield (*path, name)


def objects_of(part: Any, path: str = "") -> Iterator[tuple[str, Object]]:
    if isinstance(part, dict):
        if part.get("type") == "object":
            yield path, part
        for name, inner in part.items():
            yield from objects_of(inner, f"{path}/{name}")


def another(name: str, value: Any) -> Any:
    """Return a value of the same kind that differs."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return CHANGED_TEXTS.get(name, "changed")
        case list():
            return [] if value else ["changed" if name in TEXT_LISTS else {"name": "changed"}]
        case dict() if name == "workers":
            return {"changed": {}}
        case dict() if name == "podSecurityContext":
            return {**value, "runAsUser": 7}
        case dict():
            return {**value, "CHANGED": "7"}
        case _:
            raise AssertionError((name, value))


def without_generated(texts: list[str]) -> list[str]:
    """Return the texts without the secret that the chart makes anew each time."""
    return [re.sub(r"(RUNYARD_API_TOKEN_SECRET): \w+=*$", r"\1", text, flags=re.MULTILINE) for text in texts]
