"""docker-compose.yml, read by Docker Compose itself: it fits the specification, has no password of its own, and is closed."""

from __future__ import annotations

import re
import subprocess
from typing import Any, Final

import pytest
import yaml

from runyard.support.settings import Settings
from runyard.worker.worker import LEAVE_SECONDS
from runyard_api.http.serve import GRACE_SECONDS
from runyard_api.http.settings import ApiSettings
from runyard_api.worker.process import LINGER_SECONDS
from tests.support.topology import COMPOSE, ROOT, SECRETS, TopologyError, resolve

TEXT: Final = COMPOSE.read_text("utf-8")
GIVEN: Final = {name: f"{name.lower()}-0123456789abcdef0123456789abcdef" for name in SECRETS}
PROFILES: Final = ("monitoring",)
OURS: Final = ("migrate", "worker", "api")


@pytest.fixture(scope="module")
def model() -> dict[str, Any]:
    return resolve(TEXT, GIVEN, PROFILES)


def test_the_services_are_those_of_the_documents(model: dict[str, Any]) -> None:
    assert model["services"].keys() == {"postgres", "valkey", *OURS, "prometheus", "grafana"}
    assert resolve(TEXT, GIVEN)["services"].keys() == {"postgres", "valkey", *OURS}
    assert model["services"]["worker"]["deploy"]["replicas"] == 2


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("stop_grace_period: 50s", "stop_grace_perid: 50s", "services.worker.stop_grace_perid"),
        ("condition: service_healthy", "condition: service_ready", "condition"),
        ("replicas: 2", "replicas: two", "replicas"),
        ("interval: 2s", "interval: soon", "interval"),
        ("valkey: { condition", "redis: { condition", "depends on undefined service"),
        ("networks: [servers]", "networks: [private]", "undefined network"),
    ],
)
def test_a_key_or_value_that_the_specification_does_not_know_is_refused(old: str, new: str, reason: str) -> None:
    assert old in TEXT
    with pytest.raises(TopologyError, match=reason):
        resolve(TEXT.replace(old, new, 1), GIVEN, PROFILES)


@pytest.mark.parametrize("name", SECRETS)
def test_each_password_comes_from_the_operator(name: str) -> None:
    """A1: also none that is empty."""
    for given in ({}, {name: ""}):
        with pytest.raises(TopologyError, match=f"required variable {name} is missing a value"):
            resolve(TEXT, {other: value for other, value in GIVEN.items() if other != name} | given)


def test_no_password_is_in_the_file(model: dict[str, Any]) -> None:
    """A value that is a secret is a variable, with its name in the file and no default."""
    names = re.compile(r"PASSWORD|SECRET|AUTH|_URL$")
    for name, service in yaml.safe_load(TEXT)["services"].items():
        for variable, value in service.get("environment", {}).items():
            if names.search(variable):
                assert "${" in value and ":-" not in value.replace("${RUNYARD_WEBHOOK_SECRET:-}", ""), (name, variable)
    assert re.findall(r"requirepass (.*)", TEXT) == ["${VALKEY_PASSWORD}"]


def test_the_commands_of_the_head_make_the_passwords(tmp_path: Any) -> None:
    [script] = re.findall(r"^# Once:   (.*\n#.*) > \.env$", TEXT, re.MULTILINE)
    subprocess.run(["bash", "-ec", script.replace("\n#", "\n") + " > .env"], cwd=tmp_path, check=True)
    made = dict(line.split("=") for line in (tmp_path / ".env").read_text().splitlines())
    assert made.keys() == set(SECRETS) and all(re.fullmatch("[0-9a-f]{64}", value) for value in made.values())
    resolve(TEXT, made, PROFILES)


def test_only_this_machine_reaches_the_published_ports(model: dict[str, Any]) -> None:
    published = {name: service.get("ports", []) for name, service in model["services"].items()}
    assert {name for name, ports in published.items() if ports} == {"api", "prometheus", "grafana"}
    assert {port["host_ip"] for ports in published.values() for port in ports} == {"127.0.0.1"}
    assert model["networks"]["servers"]["internal"]
    for name in ("postgres", "valkey"):
        assert list(model["services"][name]["networks"]) == ["servers"]


def test_containers_of_runyard_have_no_more_rights_than_they_need(model: dict[str, Any]) -> None:
    for name in OURS:
        service = model["services"][name]
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["tmpfs"] == ["/tmp"], name
        assert service["security_opt"] == ["no-new-privileges:true"] and service["init"], name


def test_images_have_a_version(model: dict[str, Any]) -> None:
    others = {service["image"] for name, service in model["services"].items() if name not in OURS}
    assert all(re.search(r":v?\d+\.\d+", image) for image in others)


def test_a_stopping_container_has_the_time_that_its_process_takes(model: dict[str, Any]) -> None:
    """R9: a worker that is killed earlier has crashed its runs."""
    worker = model["services"]["worker"]
    grace = float(worker["environment"].get("RUNYARD_GRACE", Settings.model_fields["grace"].default))
    assert seconds(worker["stop_grace_period"]) > grace + LEAVE_SECONDS + LINGER_SECONDS
    assert seconds(model["services"]["api"]["stop_grace_period"]) > GRACE_SECONDS


def test_each_service_waits_for_what_it_needs_and_has_a_check(model: dict[str, Any]) -> None:
    for name in ("worker", "api"):
        conditions = {other: found["condition"] for other, found in model["services"][name]["depends_on"].items()}
        assert conditions == {"migrate": "service_completed_successfully", "valkey": "service_healthy"}, name
    assert model["services"]["migrate"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    assert {name for name, service in model["services"].items() if "healthcheck" not in service} == {"migrate"}
    assert {name for name, service in model["services"].items() if service.get("restart") != "unless-stopped"} == {"migrate"}


def test_each_variable_is_a_setting(model: dict[str, Any]) -> None:
    known = {f"RUNYARD_{name}".upper() for name in Settings.model_fields} | {"RUNYARD_APP"}
    known |= {f"RUNYARD_API_{name}".upper() for name in ApiSettings.model_fields}
    for name in OURS:
        assert set(model["services"][name]["environment"]) <= known, name


def test_mounted_files_exist_and_prometheus_reads_the_ports_of_metrics(model: dict[str, Any]) -> None:
    services = model["services"]
    for name in ("prometheus", "grafana"):
        for mount in services[name]["volumes"]:
            if mount["type"] == "bind":
                assert (ROOT / mount["source"]).exists() and mount["read_only"], mount["source"]
    config = yaml.safe_load((ROOT / "charts" / "monitoring" / "prometheus.yml").read_text("utf-8"))
    read = {(found["names"][0], str(found["port"])) for job in config["scrape_configs"] for found in job["dns_sd_configs"]}
    assert read == {
        ("worker", services["worker"]["environment"]["RUNYARD_METRICS_PORT"]),
        ("api", services["api"]["environment"]["RUNYARD_API_METRICS_PORT"]),
    }
    targets = {mount["target"] for mount in services["prometheus"]["volumes"]}
    assert set(config["rule_files"]) <= targets
    provider = yaml.safe_load((ROOT / "charts" / "monitoring" / "grafana" / "dashboards.yaml").read_text("utf-8"))
    assert provider["providers"][0]["options"]["path"] in {mount["target"] for mount in services["grafana"]["volumes"]}


def seconds(duration: str) -> float:
    """Return the seconds of a duration of Compose, such as ``1m30s``."""
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+)([hms])", duration))
