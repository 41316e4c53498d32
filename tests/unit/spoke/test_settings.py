"""Flags over environment over file; everything that is wrong at once."""

import argparse
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from machinery.errors import InvalidError
from spoke.app import options_of
from spoke.cli.flags import parser
from spoke.cli.network import address_file, probes_of, published
from spoke.domain.hubs import HubSelectionPolicy, Unaccepted
from spoke.domain.schedule import Detection
from spoke.options import Hubs
from spoke.settings import SpokeSettings, load
from spoke.settings.fields import KNOWN, FeatureGates, gates_of, own_namespace
from tests.checks import CASE_FILES, PYTHON, WRONG_TEXTS, check_each, check_refusal, present, refusal, refusal_text

TABLES = yaml.safe_load((CASE_FILES / "agent-options.yaml").read_text())

ANYWHERE = "127.0.0.1:0"
NEEDED = {"bootstrap_kubeconfig": "b"}


def read(**flags: Any) -> SpokeSettings:
    return load({**NEEDED, **flags}, {}, None)


def test_defaults_are_ocms() -> None:
    settings = read()
    assert (settings.cluster_healthcheck_period, settings.max_custom_cluster_claims) == (timedelta(minutes=1), 20)
    assert settings.component_namespace == "open-cluster-management-agent"
    assert settings.health_listen.startswith("127.0.0.1:")
    assert (settings.addon_kubeclient_registration_auth, settings.addon_token_expiration_seconds) == ("csr", 31_536_000)
    assert (settings.addon_lease_check_period, settings.addon_lease_grace) == (timedelta(seconds=30), timedelta(minutes=5))


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "spoke.yaml"
    file.write_text("cluster-name: file\nagent-id: file\nlog_level: debug\nbootstrap-kubeconfig: f\n")
    environment = {"SPOKE_CLUSTER_NAME": "env", "SPOKE_AGENT_ID": "env", "OTHER": "x"}
    settings = load({"cluster_name": "flag", "agent_id": None}, environment, file)
    assert (settings.cluster_name, settings.agent_id, settings.log_level) == ("flag", "env", "debug")
    assert settings.bootstrap_kubeconfig == (Path("f"),)


def test_agent_of_these_settings_is_found_and_never_another_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    settings, fixed = read(), read(health_listen="127.0.0.1:8000")
    with published(settings, "127.0.0.1:4242"), published(fixed, "127.0.0.1:8000"):
        assert (probes_of(settings), probes_of(fixed)) == ("127.0.0.1:4242", "127.0.0.1:8000")
        for other in ({"component_namespace": "b"}, {"kubeconfig": "b"}, {"leader_elect_resource_name": "b"}):
            assert probes_of(read(**other)) == ANYWHERE, other
    assert probes_of(settings) == ANYWHERE, "it has stopped"
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    planted = address_file(settings)
    planted.parent.mkdir()
    planted.write_text("127.0.0.1:6666")
    assert probes_of(settings) == ANYWHERE
    with published(settings, "127.0.0.1:4242"):
        assert planted.read_text() == "127.0.0.1:6666"


def test_everything_that_is_wrong_is_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "spoke.yaml"
    file.write_text("cluster-name: Bad_Name\ncluster-healthcheck-period: 0s\nno-such: 1\nmax-custom-cluster-claims: many\n")
    refused = present(refusal(InvalidError, load, {}, {}, file))
    text = ("bootstrap-kubeconfig: is required", "cluster-name: ", "greater than zero", "no-such: there is no", "max-custom")
    assert [each for each in text if each not in refused.message] == []


def test_invalid_settings_are_refused_by_name(tmp_path: Path) -> None:
    """OCM looks at none of the agent id, the life of a token, or an unknown driver."""
    wrong = [
        (flags, found)
        for flags, message in TABLES["refused"]
        if not (found := refusal_text(read, **flags)).startswith("Inv") or message not in found
    ]
    assert wrong == []
    file = tmp_path / "spoke.yaml"
    for text in ("[", "- a", "3"):
        file.write_text(text)
        check_refusal(InvalidError, load, {}, {}, file, match=r"spoke\.yaml")


def test_values_are_read_as_people_write_them() -> None:
    rows: list[tuple[str, Any, Any]] = [
        *(("client_cert_expiration_seconds", 0, 0), ("client_cert_expiration_seconds", 3600, 3600)),
        *(("addon_token_expiration_seconds", "600", 600), ("cluster_healthcheck_period", "90s", timedelta(seconds=90))),
        ("cluster_healthcheck_period", "1m", timedelta(minutes=1)),
        ("cluster_healthcheck_period", "500ms", timedelta(milliseconds=500)),
        ("cluster_healthcheck_period", "2h", timedelta(hours=2)),
        ("cluster_healthcheck_period", "15", timedelta(seconds=15)),
        ("cluster_healthcheck_period", 30, timedelta(seconds=30)),
        ("reserved_cluster_claim_suffixes", "a.io, b.io", ("a.io", "b.io")),
        *(("cluster_annotations", "k=v,l=w=x", {"k": "v", "l": "w=x"}), ("registration_driver", "", "auto")),
        *(("registration_driver", "auto", "auto"), ("registration_driver", "csr", "csr")),
        ("registration_driver", "grpc", "grpc"),
    ]
    assert [(row, found) for row in rows if (found := getattr(read(**{row[0]: row[1]}), row[0])) != row[2]] == []


def test_the_secrets_are_in_the_pods_own_namespace(tmp_path: Path) -> None:
    assert own_namespace(tmp_path) == "open-cluster-management-agent"
    (tmp_path / "namespace").write_text("edge\n")
    assert own_namespace(tmp_path) == "edge"


def test_hubs_are_listed_by_repeating_or_with_commas_in_their_order(tmp_path: Path) -> None:
    flags = vars(parser().parse_args(["run", "--bootstrap-kubeconfig", "a,b", "--bootstrap-kubeconfigs", "c"]))
    listed = load({"bootstrap_kubeconfig": flags["bootstrap_kubeconfig"]}, {}, None)
    assert listed.bootstrap_kubeconfig == (Path("a"), Path("b"), Path("c"))
    assert load({}, {"SPOKE_BOOTSTRAP_KUBECONFIGS": "a, b"}, None).bootstrap_kubeconfig == (Path("a"), Path("b"))
    file = tmp_path / "spoke.yaml"
    file.write_text("bootstrap-kubeconfigs: [a, b]\nbootstrap-kubeconfig-secret: [s, t]\nstandby-registration: false\n")
    settings = load({}, {}, file)
    assert (settings.bootstrap_kubeconfig, settings.bootstrap_kubeconfig_secret) == ((Path("a"), Path("b")), ("s", "t"))
    assert not settings.standby_registration


def test_a_secret_is_as_good_as_a_file_and_nothing_is_too_little() -> None:
    assert load({"bootstrap_kubeconfig_secret": ["hub-a,hub-b"]}, {}, None).bootstrap_kubeconfig == ()
    gates = read(feature_gates="MultipleHubs=true", bootstrap_kubeconfig="a,b").feature_gates
    assert gates == {"MultipleHubs": "true"}, "several hubs satisfy the gate of that name"
    with pytest.raises(InvalidError, match="bootstrap-kubeconfig: is required"):
        load({}, {"SPOKE_BOOTSTRAP_KUBECONFIG_SECRET": " "}, None)


def test_the_names_of_open_cluster_management_are_taken_too() -> None:
    flags = parser().parse_args(["run", "--spoke-cluster-name=a", "--registration-auth=csr", "--bootstrap-kubeconfigs=x,y"])
    assert (flags.cluster_name, flags.registration_driver, flags.bootstrap_kubeconfig) == ("a", "csr", ["x,y"])
    environment = {"SPOKE_SPOKE_CLUSTER_NAME": "a", "SPOKE_REGISTRATION_AUTH": "grpc", "SPOKE_BOOTSTRAP_KUBECONFIGS": "x,y"}
    settings = load({}, environment, None)
    assert (settings.cluster_name, settings.registration_driver, len(settings.bootstrap_kubeconfig)) == ("a", "grpc", 2)


def test_choice_between_hubs_is_set_in_times_people_write_also_by_ocms_name() -> None:
    settings = read(fail_back_after="30m", hub_timeout="600", unaccepted_hub="wait", hub_keepalive="20s", hub_silence="8s")
    options = options_of(settings)
    assert options.hubs.policy == HubSelectionPolicy(Unaccepted.WAIT, timedelta(minutes=30))
    assert options.hubs.timeout == timedelta(minutes=10)
    assert options.detection == Detection(timedelta(seconds=20), timedelta(seconds=5), timedelta(seconds=8))
    assert (options_of(read()).hubs, options_of(read()).detection) == (Hubs(), Detection())
    assert load(NEEDED, {"SPOKE_HUB_CONNECTION_TIMEOUT_SECONDS": "600"}, None).hub_timeout == timedelta(minutes=10)
    assert parser().parse_args(["run", "--hub-connection-timeout-seconds=600"]).hub_timeout == "600"


def test_feature_gates_have_ocms_defaults_and_are_switched_by_name() -> None:
    assert gates_of({}) == FeatureGates(cluster_claim=True, cluster_property=False, addon_management=True)
    variables = {"ClusterClaim": "false", "ClusterProperty": "TRUE", "AddonManagement": "0", "MultipleHubs": "true"}
    assert gates_of(variables) == FeatureGates(cluster_claim=False, cluster_property=True, addon_management=False)
    assert gates_of({"V1beta1CSRAPICompatibility": "false"}) == FeatureGates(), "a gate that is gone may stay off"
    refused = present(refusal(InvalidError, gates_of, {"ClusterImporter": "true"}))
    assert all(name in refused.message for name in KNOWN)
    for name, text in (("ClusterClaim", "maybe"), ("V1beta1CSRAPICompatibility", "true")):
        check_refusal(InvalidError, gates_of, {name: text}, match=name)


PAGE = Path(__file__).parents[3] / "docs" / "reference" / "agent-options.md"
NOT_TAKEN = "\N{EN DASH}"


def rows(heading: str) -> Iterator[list[str]]:
    """The cells of the table below a heading."""
    below = PAGE.read_text("utf-8").split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in below.splitlines() if line.startswith("| ")]
    return ([cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")] for line in lines[1:])


def test_page_of_options_names_every_option_of_ocms_agent_and_the_programs_defaults() -> None:
    table = list(rows("Options"))
    named = {row[0].strip("`").removeprefix("--") for row in table}
    assert [name for name in TABLES["options"] if name not in named] == []
    (commands,) = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    ours = {name for action in commands.choices["run"]._actions for name in action.option_strings}
    assert {row[1].strip("`") for row in table} - {NOT_TAKEN} - ours == set(), "no option of ours"
    assert [row[0] for row in table if row[1] == NOT_TAKEN and not row[3]] == [], "without a reason"
    reported = {row[1].strip("`"): row[2] for row in table}
    for option in (
        "max-custom-cluster-claims",
        "addon-token-expiration-seconds",
        "client-cert-expiration-seconds",
        "addon-kubeclient-registration-auth",
    ):
        assert reported[f"--{option}"] == str(SpokeSettings.model_fields[option.replace("-", "_")].default)
    gates = {row[0].strip("`"): row[1] for row in rows("Feature gates")}
    assert set(gates) == set(KNOWN)
    defaults = {name: default for name, default in gates.items() if name != "V1beta1CSRAPICompatibility"}
    assert gates_of(defaults) == FeatureGates()


def test_no_refusal_of_a_setting_or_a_flag_is_in_the_terms_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    values = (*WRONG_TEXTS, "\udcff", [[1]], {"a": [None]}, -1, 1.5, True, 10**400, float("nan"), float("inf"))
    top = next(action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    flags = [
        (command, action.option_strings[0])
        for command, each in top.choices.items()
        for action in each._actions
        if action.nargs != 0
    ]

    def check(name: str, value: Any) -> None:
        refused = refusal(InvalidError, load, {**NEEDED, name: value}, {}, None)
        message = (refused.message if refused else "").replace(str(value)[:80], "")
        assert not PYTHON.search(message), message

    def check_flag(command: str, flag: str, value: str) -> None:
        def loaded() -> None:
            given = vars(parser().parse_args([command, f"{flag}={value}"]))
            load({name: given[name] for name in SpokeSettings.model_fields if name in given}, {}, given["config"])

        try:
            refused = refusal(InvalidError, loaded)
        except SystemExit:
            refused = None
        message = ((refused.message if refused else "") + capsys.readouterr().err).replace(value[:80], "")
        assert not PYTHON.search(message), message

    check_each(check, ((name, value) for name in SpokeSettings.model_fields for value in values))
    check_each(check_flag, ((*flag, value) for flag in flags for value in WRONG_TEXTS))
