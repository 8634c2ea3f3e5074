"""What the objects of the chart promise to those who operate it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pytest
import typer
import yaml

from runyard.support.settings import Settings
from runyard.worker.worker import LEAVE_SECONDS
from runyard_api.cli.main import app
from runyard_api.http.serve import GRACE_SECONDS
from runyard_api.http.settings import ApiSettings
from runyard_api.worker.process import LINGER_SECONDS
from tests.support import chart
from tests.support.chart import Object

each_case: Final = pytest.mark.parametrize("case", chart.CASES)
SECRET: Final = re.compile(r"_(URL|SECRET|KEY|TOKEN|PASSWORD)$")


def variables(container: Object) -> dict[str, Object]:
    return {entry["name"]: entry for entry in container.get("env", ())}


def selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return selector.items() <= labels.items()


def labels_of_pods(objects: Iterable[Object]) -> Iterator[dict[str, str]]:
    for found in objects:
        if found["kind"] == "Pod":
            yield found["metadata"]["labels"]
        elif found["kind"] in ("Deployment", "Job"):
            yield found["spec"]["template"]["metadata"]["labels"]


@each_case
def test_pods_have_no_more_rights_than_they_need(case: str) -> None:
    """The level "restricted" of the Pod Security Standards, a read-only file system, and no token of the service account."""
    objects = chart.rendered(case)
    for name, pod in chart.pods(objects):
        security = pod["securityContext"]
        assert security["runAsNonRoot"] and security["runAsUser"] > 0, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert pod["automountServiceAccountToken"] is False and pod["enableServiceLinks"] is False, name
        assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}, name
        assert all("hostPath" not in volume for volume in pod["volumes"]), name
    for name, container in chart.containers(objects):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }, name  # fmt: skip
        assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"], name
    assert all(found["automountServiceAccountToken"] is False for found in chart.of_kind(objects, "ServiceAccount").values())


@each_case
def test_containers_ask_for_resources_and_bound_their_memory(case: str) -> None:
    for name, container in chart.containers(chart.rendered(case)):
        assert container["resources"]["requests"].keys() >= {"cpu", "memory"}, name
        assert "memory" in container["resources"]["limits"], name


@each_case
def test_secrets_come_from_secrets(case: str) -> None:
    for name, container in chart.containers(chart.rendered(case)):
        literal = [
            entry["name"] for entry in variables(container).values() if SECRET.search(entry["name"]) and "value" in entry
        ]
        assert literal == [], name


def test_each_secret_may_be_one_that_exists() -> None:
    objects = chart.rendered("external-secrets")
    assert not chart.of_kind(objects, "Secret")
    found = {
        name: {
            entry["name"]: (entry["valueFrom"]["secretKeyRef"]["name"], entry["valueFrom"]["secretKeyRef"]["key"])
            for entry in variables(container).values() if "valueFrom" in entry
        }
        for name, container in chart.containers(objects)
    }  # fmt: skip
    common = {
        "RUNYARD_LISTEN_URL": ("app-db", "direct-uri"),
        "RUNYARD_REDIS_URL": ("cache", "url"),
        "RUNYARD_WEBHOOK_SECRET": ("webhooks", "secret"),
    }
    worker = {"RUNYARD_POSTGRES_URL": ("app-db", "uri"), **common}
    assert found["shop-worker/worker"] == worker
    assert found["shop-test/doctor"] == worker
    assert found["shop-api/api"] == {**worker, "RUNYARD_API_TOKEN_SECRET": ("streams", "RUNYARD_API_TOKEN_SECRET")}
    assert found["shop-migrate-3/migrate"] == {"RUNYARD_POSTGRES_URL": ("app-db-owner", "uri"), **common}
    [keda] = chart.of_kind(objects, "TriggerAuthentication").values()
    assert keda["spec"]["secretTargetRef"] == [{"parameter": "connection", "name": "keda-db", "key": "uri"}]


def test_the_token_secret_is_made_once_and_kept() -> None:
    """A1: the API does not start without one, and all its processes have the same."""
    objects = chart.rendered("minimal")
    [made] = chart.of_kind(objects, "Secret").values()
    assert made["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert made["data"].keys() == {"RUNYARD_API_TOKEN_SECRET"}
    taken = variables(dict(chart.containers(objects))["shop-api/api"])["RUNYARD_API_TOKEN_SECRET"]["valueFrom"]["secretKeyRef"]
    assert taken == {"name": made["metadata"]["name"], "key": "RUNYARD_API_TOKEN_SECRET"}
    source = (chart.CHART / "templates" / "api.yaml").read_text("utf-8")
    assert 'lookup "v1" "Secret" .Release.Namespace $name' in source  # a renderer without a cluster finds nothing


def test_a_variable_of_the_values_replaces_that_of_the_chart() -> None:
    for name, container in chart.containers(chart.rendered("everything")):
        names = [entry["name"] for entry in container.get("env", ())]
        assert len(names) == len(set(names)), name
    api = variables(dict(chart.containers(chart.rendered("everything")))["agents-api/api"])
    assert api["RUNYARD_API_IDLE_TIMEOUT"]["value"] == "620" and api["RUNYARD_API_HOST"]["value"] == "::"


def test_the_chart_and_the_project_have_one_version() -> None:
    [version] = re.findall(r'^version = "(.*)"$', (chart.CHART.parents[1] / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    assert chart.loaded().metadata["appVersion"] == version


@each_case
def test_each_variable_is_a_setting_and_each_command_exists(case: str) -> None:
    known = {f"RUNYARD_{name}".upper() for name in Settings.model_fields} | {"RUNYARD_APP"}
    known |= {f"RUNYARD_API_{name}".upper() for name in ApiSettings.model_fields}
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, container in chart.containers(chart.rendered(case)):
        assert {entry for entry in variables(container) if entry.startswith("RUNYARD_")} <= known, name
        assert "command" in container or container["args"][0] in commands, name
        settings = {entry: found["value"] for entry, found in variables(container).items() if "value" in found}
        assert Settings(**own(settings, "RUNYARD_")).slots and ApiSettings(**own(settings, "RUNYARD_API_")).port, name


def own(settings: Mapping[str, str], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix).lower(): value for name, value in settings.items() if name.startswith(prefix)}


@each_case
def test_a_stopping_pod_has_the_time_that_its_process_takes(case: str) -> None:
    """R9: a worker that is killed earlier has crashed its runs."""
    deployments = chart.of_kind(chart.rendered(case), "Deployment")
    workers = {name: found for name, found in deployments.items() if "-worker" in name}
    assert workers
    for name, found in workers.items():
        pod = found["spec"]["template"]["spec"]
        grace = float(variables(pod["containers"][0])["RUNYARD_GRACE"]["value"])
        assert pod["terminationGracePeriodSeconds"] > grace + LEAVE_SECONDS + LINGER_SECONDS, name
    for found in (found for name, found in deployments.items() if name.endswith("-api")):
        pod = found["spec"]["template"]["spec"]
        pause = float(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
        assert pod["terminationGracePeriodSeconds"] > pause + GRACE_SECONDS


def test_the_documents_ask_for_that_time() -> None:
    text = (chart.CHART.parents[1] / "docs" / "operations.md").read_text("utf-8")
    [granted] = re.findall(r"`RUNYARD_GRACE` plus (\d+) seconds", text)
    assert float(granted) > LEAVE_SECONDS + LINGER_SECONDS
    assert f"the pod gets {granted} more" in (chart.CHART / "values.yaml").read_text("utf-8")


@each_case
def test_rollouts_wait_for_readiness_and_probes_name_ports(case: str) -> None:
    for name, found in chart.of_kind(chart.rendered(case), "Deployment").items():
        assert found["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}, name
        [container] = found["spec"]["template"]["spec"]["containers"]
        ports = {port["name"] for port in container["ports"]}
        paths = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
        assert {kind: probe["path"] for kind, probe in paths.items()} == {
            "startup": "/livez", "liveness": "/livez", "readiness": "/readyz",
        }, name  # fmt: skip
        assert {probe["port"] for probe in paths.values()} <= ports, name
        assert found["spec"]["template"]["spec"]["topologySpreadConstraints"], name


@each_case
def test_selectors_select_what_they_are_for(case: str) -> None:
    """No pod belongs to two deployments, and no Service, budget, policy or monitor selects nothing."""
    objects = chart.rendered(case)
    labels = list(labels_of_pods(objects))
    deployments = chart.of_kind(objects, "Deployment")
    for name, found in deployments.items():
        assert selects(found["spec"]["selector"]["matchLabels"], found["spec"]["template"]["metadata"]["labels"]), name
        assert sum(selects(found["spec"]["selector"]["matchLabels"], each) for each in labels) == 1, name
    services = chart.of_kind(objects, "Service")
    for found in objects:
        spec = found.get("spec", {})
        match found["kind"]:
            case "Service":
                selector, those = spec["selector"], labels
            case "PodDisruptionBudget" | "PodMonitor":
                selector, those = spec["selector"]["matchLabels"], labels
            case "NetworkPolicy":
                selector, those = spec["podSelector"]["matchLabels"], labels
            case "ServiceMonitor":
                selector, those = spec["selector"]["matchLabels"], [each["metadata"]["labels"] for each in services.values()]
            case _:
                continue
        assert any(selects(selector, each) for each in those), (found["kind"], found["metadata"]["name"])


@each_case
def test_a_budget_lets_nodes_be_drained(case: str) -> None:
    objects = chart.rendered(case)
    budgets = chart.of_kind(objects, "PodDisruptionBudget")
    for name, found in budgets.items():
        assert "minAvailable" not in found["spec"] and found["spec"]["maxUnavailable"] not in (0, "0%"), name
        assert found["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow", name
    without = chart.of_kind(objects, "Deployment").keys() - budgets.keys()
    assert without == ({"agents-worker-batch"} if case == "everything" else set())


def test_the_migration_needs_nothing_that_comes_after_it() -> None:
    """The Job is a hook before the release. What it refers to is a hook before the Job, or is made by somebody else."""
    for case in chart.CASES:
        objects = chart.rendered(case)
        [job] = chart.of_kind(objects, "Job").values()
        hook = job["metadata"]["annotations"]
        assert hook["helm.sh/hook"] == "pre-install,pre-upgrade"
        assert job["spec"]["activeDeadlineSeconds"] and job["spec"]["backoffLimit"]
        assert all("initContainers" not in pod for _, pod in chart.pods(objects))
        released = {
            (found["kind"], found["metadata"]["name"]) for found in objects
            if "helm.sh/hook" not in found["metadata"].get("annotations", {})
        }  # fmt: skip
        earlier = {
            (found["kind"], found["metadata"]["name"]) for found in objects
            if (own := found["metadata"].get("annotations", {})).get("helm.sh/hook") == hook["helm.sh/hook"]
            and int(own["helm.sh/hook-weight"]) < int(hook["helm.sh/hook-weight"])
        }  # fmt: skip
        [container] = job["spec"]["template"]["spec"]["containers"]
        text = json.dumps(container)
        assert not {name for kind, name in released if kind in ("Secret", "ConfigMap") and f'"{name}"' in text}
        account = ("ServiceAccount", job["spec"]["template"]["spec"]["serviceAccountName"])
        assert account in earlier or case == "external-secrets", case  # there the account exists
        policies = {name for kind, name in earlier if kind == "NetworkPolicy"}
        assert len(policies) == (case != "no-monitoring"), case


def test_an_upgrade_keeps_names_and_selectors() -> None:
    """Kubernetes refuses a change of a deployment's selector."""
    deployments = chart.of_kind(chart.rendered("minimal"), "Deployment")
    for part in ("api", "worker"):
        assert deployments[f"shop-{part}"]["spec"]["selector"]["matchLabels"] == {
            "app.kubernetes.io/name": "runyard", "app.kubernetes.io/instance": "shop", "app.kubernetes.io/component": part,
        }  # fmt: skip


def test_groups_of_workers_take_the_values_of_worker_and_replace_some() -> None:
    objects = chart.rendered("everything")
    found = {
        name: {key: entry.get("value") for key, entry in variables(container).items()}
        for name, container in chart.containers(objects) if "/worker" in name
    }  # fmt: skip
    assert {name: (own.get("RUNYARD_QUEUES"), own["RUNYARD_SLOTS"], own["RUNYARD_GRACE"]) for name, own in found.items()} == {
        "agents-worker-chat/worker": ("default,priority", "1000", "120"),
        "agents-worker-gpu/worker": ("gpu", "4", "600"),
        "agents-worker-batch/worker": ("batch", "1000", "120"),
        "agents-worker-plain/worker": (None, "1000", "120"),
    }
    gpu = chart.of_kind(objects, "Deployment")["agents-worker-gpu"]["spec"]["template"]["spec"]
    assert found["agents-worker-gpu/worker"].items() >= {"RUNYARD_WATCHDOG": "60", "CUDA_VISIBLE_DEVICES": "0"}.items()
    assert gpu["containers"][0]["resources"]["limits"] == {"memory": "1Gi", "nvidia.com/gpu": 1}
    assert gpu["nodeSelector"] == {"accelerator": "gpu"} and gpu["priorityClassName"] == "agents"


def test_workers_scale_on_the_slots_that_their_queues_need() -> None:
    objects = chart.rendered("everything")
    deployments = chart.of_kind(objects, "Deployment")
    scaled = chart.of_kind(objects, "ScaledObject")
    assert {name for name, found in deployments.items() if "replicas" not in found["spec"]} == {*scaled, "agents-api"}
    assert scaled.keys() == {"agents-worker-chat", "agents-worker-gpu", "agents-worker-plain"}
    triggers = {name: found["spec"]["triggers"][0]["metadata"] for name, found in scaled.items()}
    assert {name: (trigger["query"], trigger["targetQueryValue"]) for name, trigger in triggers.items()} == {
        "agents-worker-chat": ("""SELECT runyard.worker_demand('{"default","priority"}')""", "750"),
        "agents-worker-gpu": ("""SELECT runyard.worker_demand('{"gpu"}')""", "4"),
        "agents-worker-plain": ("SELECT runyard.worker_demand(NULL)", "750"),
    }
    for name, found in scaled.items():
        assert found["spec"]["scaleTargetRef"]["name"] == name in deployments
        assert triggers[name]["activationTargetQueryValue"] == "0"  # a demand of 1 keeps a worker
    assert scaled["agents-worker-gpu"]["spec"]["minReplicaCount"] == 0


def test_streams_have_their_time_on_the_way_in() -> None:
    objects = chart.rendered("everything")
    longest = int(variables(dict(chart.containers(objects))["agents-api/api"])["RUNYARD_API_MAX_STREAM"]["value"])
    [ingress] = chart.of_kind(objects, "Ingress").values()
    notes = ingress["metadata"]["annotations"]
    assert int(notes["nginx.ingress.kubernetes.io/proxy-read-timeout"]) > longest
    assert notes["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    assert notes["nginx.ingress.kubernetes.io/proxy-body-size"] == "64m"  # the operator's own comes first
    [route] = chart.of_kind(objects, "HTTPRoute").values()
    assert route["spec"]["rules"][0]["timeouts"] == {"request": "0s", "backendRequest": "0s"}
    backends = {
        ingress["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]["name"],
        route["spec"]["rules"][0]["backendRefs"][0]["name"],
    }
    assert backends <= chart.of_kind(objects, "Service").keys()


@each_case
def test_network_policies_open_declared_ports_only(case: str) -> None:
    objects = chart.rendered(case)
    policies = chart.of_kind(objects, "NetworkPolicy")
    assert bool(policies) == (case != "no-monitoring")
    pods = list(zip(labels_of_pods(objects), (pod for _, pod in chart.pods(objects)), strict=True))
    for name, found in policies.items():
        assert found["spec"]["policyTypes"] == ["Ingress", "Egress"] and found["spec"]["egress"], name
        ports = {
            port["name"] for labels, pod in pods if selects(found["spec"]["podSelector"]["matchLabels"], labels)
            for container in pod["containers"] for port in container.get("ports", ())
        }  # fmt: skip
        opened = {port["port"] for rule in found["spec"].get("ingress", ()) for port in rule["ports"]}
        assert opened == ports, name
    if policies:
        for labels, _ in pods:
            assert any(selects(found["spec"]["podSelector"]["matchLabels"], labels) for found in policies.values()), labels


def test_pods_cannot_reach_the_metadata_server_of_the_cloud() -> None:
    """A model's tool may be talked into asking it for credentials."""
    for name, found in chart.of_kind(chart.rendered("minimal"), "NetworkPolicy").items():
        blocks = [peer["ipBlock"] for rule in found["spec"]["egress"] for peer in rule["to"] if "ipBlock" in peer]
        assert {address for block in blocks for address in block["except"]} == {"169.254.169.254/32", "fd00:ec2::254/128"}, name


def test_monitors_and_annotations_lead_to_the_ports_of_metrics() -> None:
    objects = chart.rendered("everything")
    containers = dict(chart.containers(objects))
    for name, found in chart.of_kind(objects, "Deployment").items():
        notes = found["spec"]["template"]["metadata"]["annotations"]
        [container] = found["spec"]["template"]["spec"]["containers"]
        port = {each["name"]: each["containerPort"] for each in container["ports"]}["metrics"]
        setting = "RUNYARD_API_METRICS_PORT" if name == "agents-api" else "RUNYARD_METRICS_PORT"
        assert notes["prometheus.io/port"] == str(port) == variables(container)[setting]["value"], name
    [pods] = chart.of_kind(objects, "PodMonitor").values()
    [services] = chart.of_kind(objects, "ServiceMonitor").values()
    assert pods["spec"]["podMetricsEndpoints"][0]["port"] in {
        port["name"] for port in containers["agents-worker-gpu/worker"]["ports"]
    }
    service = chart.of_kind(objects, "Service")["agents-metrics"]["spec"]
    assert service["clusterIP"] == "None" and services["spec"]["endpoints"][0]["port"] == service["ports"][0]["name"]
    assert {port["name"] for port in chart.of_kind(objects, "Service")["agents-http"]["spec"]["ports"]} == {"http"}


def test_alerts_and_dashboards_are_those_of_the_files() -> None:
    objects = chart.rendered("everything")
    [rule] = chart.of_kind(objects, "PrometheusRule").values()
    alerts = (chart.CHART / "alerts.yaml").read_text("utf-8")
    assert "runbook_url: docs/runbooks/" in alerts
    assert rule["spec"] == yaml.safe_load(alerts.replace("docs/runbooks/", "https://docs.example/docs/runbooks/"))
    maps = chart.of_kind(objects, "ConfigMap").values()
    held = {name: json.loads(text) for found in maps for name, text in found["data"].items()}
    files = {
        f"runyard-{path.name}": json.loads(path.read_text("utf-8")) for path in (chart.CHART / "dashboards").glob("*.json")
    }
    assert held == files and files
    for found in maps:
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1" and found["metadata"]["namespace"] == "monitoring"
        assert len(json.dumps(found)) < 2**20  # the most that Kubernetes stores


def test_without_monitoring_nothing_of_it_is_rendered() -> None:
    text = json.dumps(chart.rendered("no-monitoring"))
    assert "monitoring.coreos.com" not in text and "prometheus.io" not in text and "grafana" not in text
    assert "monitoring.coreos.com" not in json.dumps(chart.rendered("minimal"))
