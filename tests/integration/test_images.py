"""Dockerfile and docker-compose.yml, as far as they can be judged without an engine."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from hollow.__main__ import main as hollow
from hub.settings import Settings as HubSettings
from hub.settings import load
from spoke.flags import parser as spoke_parser

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
REPLICAS = [name for name, service in SERVICES.items() if "HUB_REPLICA_NAME" in (service.get("environment") or {})]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def targets() -> set[str]:
    lines = [line.split() for line in DOCKERFILE.splitlines() if line.startswith("FROM ")]
    return {words[3] for words in lines if len(words) == 4}


def test_dockerfile_has_no_lint_finding() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    found = subprocess.run([hadolint, "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")


def test_every_copied_path_exists_and_is_let_into_the_build() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copies = [line.split()[1:-1] for line in DOCKERFILE.splitlines() if line.startswith("COPY ") and "--from" not in line]
    copied = {path for paths in copies for path in paths}
    assert copied == let_in
    assert all((ROOT / path).exists() for path in copied)


@pytest.mark.parametrize("target", ["hub", "spoke", "hollow"])
def test_image_of_each_program_starts_it_without_root(target: str) -> None:
    stage = DOCKERFILE.partition(f"FROM programs AS {target}\n")[2].partition("\nFROM ")[0]
    assert f'ENTRYPOINT ["{target}"]' in stage
    assert "USER" not in stage, "the user of the stage below is the one that runs"
    assert "\nUSER 10001:10001\n" in DOCKERFILE.partition("AS programs\n")[2].partition("\nFROM ")[0]


def test_compose_builds_only_targets_that_exist() -> None:
    built = {service["build"]["target"] for service in SERVICES.values() if "build" in service}
    assert built == {"hub", "spoke", "hollow"}
    assert built <= targets()


def test_compose_names_only_services_and_volumes_that_exist() -> None:
    for service in SERVICES.values():
        assert set(service.get("depends_on", {})) <= set(SERVICES)
        assert {volume.partition(":")[0] for volume in service.get("volumes", [])} <= set(COMPOSE["volumes"])
        assert service.get("network_mode", "service:hollow").removeprefix("service:") in SERVICES


def test_compose_waits_only_for_health_that_is_checked() -> None:
    for service in SERVICES.values():
        for name, awaited in service.get("depends_on", {}).items():
            assert awaited["condition"] != "service_healthy" or "healthcheck" in SERVICES[name]


def test_containers_are_closed_as_far_as_they_can_be() -> None:
    for service in SERVICES.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "privileged" not in service
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_every_variable_of_the_hub_is_a_setting() -> None:
    known = {f"HUB_{name.upper()}" for name in HubSettings.model_fields} | {"HUBCTL_KUBECONFIG"}
    for name in REPLICAS:
        environment = {key: re.sub(r"\$\{\w+:-(\w+)\}", r"\1", value) for key, value in SERVICES[name]["environment"].items()}
        assert set(environment) <= known
        assert load({}, None, environment).auto_approve == ("*",)


def test_the_replicas_differ_by_their_names_alone_and_tell_the_proxys() -> None:
    told = [{**SERVICES[name]["environment"], "HUB_REPLICA_NAME": ""} for name in REPLICAS]
    assert len(REPLICAS) == 2
    assert told[0] == told[1]
    assert {told[0][f"HUB_{door}_ADVERTISED"].partition(":")[0] for door in ("GRPC", "HTTPS")} == {"proxy"}
    assert not any("ports" in SERVICES[name] for name in REPLICAS)


def test_the_proxy_passes_both_doors_to_both_replicas_and_asks_for_their_readiness() -> None:
    text = COMPOSE["configs"]["proxy"]["content"]
    assert "mode tcp" in text
    for port in ("8443", "6443"):
        assert f"bind :{port}" in text
        assert f"127.0.0.1:{port}:{port}" in SERVICES["proxy"]["ports"]
        assert set(re.findall(rf"server (\S+) \1:{port}$", text, re.MULTILINE)) == set(REPLICAS)
    assert "option httpchk GET /readyz" in text
    assert "check port 6443 check-ssl" in text


def test_programs_know_the_flags_they_are_given() -> None:
    spoke_parser().parse_args(SERVICES["spoke-0"]["command"])
    assert isinstance(hollow, click.Group)
    name, *arguments = SERVICES["hollow"]["command"]
    hollow.commands[name].make_context(name, arguments)
