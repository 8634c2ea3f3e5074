"""What the chart renders fits the schemas of three versions of Kubernetes, and those of operators."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Final

import helm_python
import pytest

from tests.support import chart
from tests.support.chart import Object
from tests.support.node import BOUND, NODE, installed, said

CUSTOM: Final = Path(__file__).parent / "custom_resources"


def custom_objects() -> list[Object]:
    return [found for case in chart.CASES for found in chart.rendered(case) if chart.is_custom(found)]


def own_objects(case: str) -> list[Object]:
    return [found for found in chart.rendered(case) if not chart.is_custom(found)]


async def check_custom(objects: list[Object], place: Path) -> str:
    """Validate custom resources: their values with the operators' validators, and their fields with TypeScript, which refuses a
    field that the type does not have."""
    shutil.copytree(CUSTOM, place, dirs_exist_ok=True)
    (place / "node_modules").symlink_to(await installed(CUSTOM))
    (place / "objects.json").write_text(json.dumps(objects))
    told = await said(NODE, "--preserve-symlinks", "check.mjs", "objects.json", cwd=place)
    return told + await said(NODE, place / "node_modules" / ".bin" / "tsc", "--preserveSymlinks", cwd=place)


@pytest.mark.parametrize("version", chart.VERSIONS)
@pytest.mark.parametrize("case", chart.CASES)
def test_each_object_fits_the_strict_schema_of_its_kind(case: str, version: str) -> None:
    assert chart.misfits(own_objects(case), version) == []


@pytest.mark.parametrize("version", chart.VERSIONS)
def test_a_field_or_value_that_kubernetes_does_not_know_is_found(version: str) -> None:
    objects = own_objects("minimal")
    pod = chart.of_kind(objects, "Deployment")["shop-worker"]["spec"]["template"]["spec"]
    pod["terminationGracePeriod"] = pod.pop("terminationGracePeriodSeconds")
    chart.of_kind(objects, "Service")["shop-http"]["spec"]["ports"][0]["port"] = "http"
    first, second = sorted(chart.misfits(objects, version))
    assert "shop-worker" in first and "'terminationGracePeriod' was unexpected" in first
    assert "shop-http, spec.ports.0.port: 'http' is not of type 'integer'" in second


@pytest.mark.timeout(2 * BOUND)
async def test_custom_resources_fit_the_types_and_validators_of_their_operators(tmp_path: Path) -> None:
    objects = custom_objects()
    assert {found["kind"] for found in objects} == {
        "HTTPRoute", "PodMonitor", "PrometheusRule", "ScaledObject", "ServiceMonitor", "TriggerAuthentication",
    }  # fmt: skip
    assert await check_custom(objects, tmp_path / "right") == ""
    route, monitor = (next(found for found in objects if found["kind"] == kind) for kind in ("HTTPRoute", "PodMonitor"))
    route["spec"]["rules"][0]["timeouts"]["request"] = "for ever"
    with pytest.raises(AssertionError, match="HTTPRoute agents-api: data/spec/rules/0/timeouts/request must match pattern"):
        await check_custom([route], tmp_path / "value")
    monitor["spec"]["podMetricsEndpoints"][0]["every"] = "15s"
    with pytest.raises(AssertionError, match="'\"every\"' does not exist in type"):
        await check_custom([monitor], tmp_path / "field")


@pytest.mark.parametrize("case", chart.CASES)
def test_helm_lint_has_no_warning(case: str) -> None:
    report = helm_python.lint(chart.CHART, chart.values(case), strict=True)
    informative = 1
    assert [found for found in report["messages"] if found["severity"] > informative] == []
    assert not report["errors"]
