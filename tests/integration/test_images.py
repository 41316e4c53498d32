"""What is built: the wheel with its locks, the images and the composition, as far as they can be judged without an engine."""

import configparser
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import import_module, metadata
from pathlib import Path
from runpy import run_module
from typing import Any

import click
import grimp
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hollow.__main__ import main as hollow
from hub.extensions.settings import Settings, load
from machinery import product
from machinery.startup_imports import EXTRAS
from spoke.cli.flags import parser as spoke_parser

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
REPLICAS = [name for name, service in SERVICES.items() if "HUB_REPLICA_NAME" in (service.get("environment") or {})]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_dockerfile_has_no_lint_finding_copies_what_is_let_in_and_starts_programs_without_root() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    found = subprocess.run([hadolint, "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copies = [line.split()[1:-1] for line in DOCKERFILE.splitlines() if line.startswith("COPY ") and "--from" not in line]
    copied = {path for paths in copies for path in paths}
    assert (copied, [path for path in copied if not (ROOT / path).exists()]) == (let_in, [])
    assert "\nUSER 10001:10001\n" in DOCKERFILE.partition("AS programs\n")[2].partition("\nFROM ")[0]
    for target in ("hub", "spoke", "hollow"):
        stage = DOCKERFILE.partition(f"FROM programs AS {target}\n")[2].partition("\nFROM ")[0]
        assert f'ENTRYPOINT ["{target}"]' in stage
        assert "USER" not in stage, "the user of the stage below is the one that runs"


def test_images_are_built_under_the_names_of_the_charts_and_an_engine_is_asked_for() -> None:
    commands = (["make", "-s", "images", f"ENGINE={engine}"] for engine in ("echo", ""))
    made, refused = (subprocess.run(each, cwd=ROOT, capture_output=True, text=True, check=False) for each in commands)
    for line, chart in zip(made.stdout.splitlines()[:2], ("hub", "spoke"), strict=True):
        about, values = (yaml.safe_load((ROOT / "charts" / chart / name).read_text()) for name in ("Chart.yaml", "values.yaml"))
        assert line == f"build --target {chart} --tag {values['image']['repository']}:{about['appVersion']} ."
    assert (refused.returncode, "needs docker, podman or buildah" in refused.stderr) == (2, True)


def test_compose_names_what_exists_and_closes_its_containers() -> None:
    lines = [line.split() for line in DOCKERFILE.splitlines() if line.startswith("FROM ")]
    built = {service["build"]["target"] for service in SERVICES.values() if "build" in service}
    assert built == {"hub", "spoke", "hollow"} <= {words[3] for words in lines if len(words) == 4}
    for service in SERVICES.values():
        depends = service.get("depends_on", {})
        assert set(depends) <= set(SERVICES)
        healthy = {name for name, awaited in depends.items() if awaited["condition"] == "service_healthy"}
        assert healthy <= {name for name, other in SERVICES.items() if "healthcheck" in other}
        assert {volume.partition(":")[0] for volume in service.get("volumes", [])} <= set(COMPOSE["volumes"])
        assert service.get("network_mode", "service:hollow").removeprefix("service:") in SERVICES
        assert (service["read_only"], service["cap_drop"], "privileged" in service) == (True, ["ALL"], False)
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_compose_gives_programs_the_settings_and_flags_that_they_have() -> None:
    for name in REPLICAS:
        environment = {key: re.sub(r"\$\{\w+:-(\w+)\}", r"\1", value) for key, value in SERVICES[name]["environment"].items()}
        assert set(environment) <= {f"HUB_{name.upper()}" for name in Settings.model_fields}
        assert load({}, None, environment).auto_approve == ("*",)
    spoke_parser().parse_args(SERVICES["spoke-0"]["command"])
    assert isinstance(hollow, click.Group)
    name, *arguments = SERVICES["hollow"]["command"]
    hollow.commands[name].make_context(name, arguments)


def test_compose_has_two_replicas_behind_a_proxy_of_both_doors() -> None:
    variables = [{**SERVICES[name]["environment"], "HUB_REPLICA_NAME": ""} for name in REPLICAS]
    assert variables == [variables[0]] * 2
    assert {variables[0][f"HUB_{door}_ADVERTISED"].partition(":")[0] for door in ("GRPC", "HTTPS")} == {"proxy"}
    assert not any("ports" in SERVICES[name] for name in REPLICAS)
    text = COMPOSE["configs"]["proxy"]["content"]
    assert [each for each in ("mode tcp", "option httpchk GET /readyz", "check port 6443 check-ssl") if each not in text] == []
    for port, variable in (("8443", "GRPC_PORT"), ("6443", "HTTPS_PORT")):
        assert f"bind :{port}" in text
        assert f"127.0.0.1:${{{variable}:-1{port}}}:{port}" in SERVICES["proxy"]["ports"], "free beside `hub serve`"
        assert set(re.findall(rf"server (\S+) \1:{port}$", text, re.MULTILINE)) == set(REPLICAS)


PACKAGES = {"machinery", "hub", "hubctl", "spoke", "hollow"}


def test_each_program_imports_packages_of_its_extra_alone_hubctl_none_and_a_missing_one_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = grimp.build_graph(*PACKAGES, include_external_packages=True, cache_dir=None)
    foreign = {name for name in graph.modules if graph.is_module_squashed(name)} - sys.stdlib_module_names - {"_typeshed"}
    used = {each: foreign & graph.find_upstream_modules(each, as_package=True) for each in ("hubctl", *EXTRAS)}
    owners = {module: canonicalize_name(names[0]) for module, names in metadata.packages_distributions().items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = {"hubctl": project["dependencies"], **project["optional-dependencies"]}
    listed = {extra: {canonicalize_name(Requirement(each).name) for each in lines} for extra, lines in listed.items()}
    assert {owners[module] for module in used["hubctl"]} == listed["hubctl"]
    below = {"google", "jsonpointer", "multidict", "opentelemetry", "pydantic_core", "pytest", "yarl"}  # pytest: plug-in
    for program, modules in EXTRAS.items():
        assert {owners[module] for module in used[program] - below} <= listed["hubctl"] | listed[program]
        assert {owners[module] for module in modules} - {"psycopg-pool"} == listed[program] - {"protobuf"}
        monkeypatch.setattr(sys, "argv", [program])
        with monkeypatch.context() as patched, pytest.raises(SystemExit, match=rf"aiohttp.*muster-hub\[{program}\]"):
            patched.setitem(sys.modules, "aiohttp", None)
            patched.delitem(sys.modules, f"{program}.__main__", raising=False)
            run_module(program, run_name="__main__")


def described(wheel: zipfile.ZipFile, name: str) -> str:
    [found] = [path for path in wheel.namelist() if path.endswith(f".dist-info/{name}")]
    return wheel.read(found).decode()


def test_wheel_and_sdist_hold_our_packages_and_the_wheel_programs_and_licence(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "--directory", str(tmp_path)], cwd=ROOT, check=True)
    [path], [source] = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    with zipfile.ZipFile(path) as wheel:
        held = set(wheel.namelist())
        assert {name.split("/")[0] for name in held if ".dist-info/" not in name} == PACKAGES
        files = {path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()}
        expected = {str(path.relative_to(ROOT)) for path in files if path.suffix != ".pyc"}
        assert expected <= held
        with tarfile.open(source) as sdist:
            assert expected <= {name.partition("/")[2] for name in sdist.getnames()}
        assert {f"{package}/py.typed" for package in PACKAGES} <= held

        entries = configparser.ConfigParser()
        entries.read_string(described(wheel, "entry_points.txt"))
        programs = dict(entries["console_scripts"])
        assert set(programs) == {"hub", "spoke", "hubctl", "hollow", "kubectl-hub", "kubectl_complete-hub"}
        for target in programs.values():
            module, _, function = target.partition(":")
            assert callable(getattr(import_module(module), function))

        about = described(wheel, "METADATA")
        assert f"\nName: {product.DISTRIBUTION}\n" in about
        assert "\nLicense-Expression: Apache-2.0\n" in about
        assert "Apache License" in described(wheel, "licenses/LICENSE")


def test_locks_pin_by_hash_and_record_no_address() -> None:
    for lock in ("", "-hub", "-spoke", "-build", "-dev", "-release"):
        text = (ROOT / f"requirements{lock}.lock").read_text()
        pins = [line for line in text.splitlines() if "==" in line]
        assert pins
        assert text.count("--hash=sha256:") >= len(pins)
        assert not [line for line in text.splitlines() if "://" in line or "index" in line or " @ " in line], lock
