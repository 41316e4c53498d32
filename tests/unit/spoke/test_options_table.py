"""The page about options tells the truth: every option of OCM's agent is in it, and what it says of ours is so."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from spoke.flags import parser
from spoke.gates import KNOWN, FeatureGates, gates_of
from spoke.settings import Settings

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "agent-options.md"
OCMS = (
    *("spoke-kubeconfig", "spoke-cluster-name", "cluster-name", "hub-kubeconfig-dir", "hub-kubeconfig", "agent-id"),
    *("hub-kube-api-qps", "hub-kube-api-burst", "kube-api-qps", "kube-api-burst", "tls-min-version", "tls-cipher-suites"),
    *("disable-leader-election", "leader-election-lease-duration", "leader-election-renew-deadline"),
    *("leader-election-retry-period", "bootstrap-kubeconfig", "bootstrap-kubeconfig-secret", "bootstrap-kubeconfigs"),
    *("hub-kubeconfig-secret", "spoke-external-server-urls", "cluster-healthcheck-period", "max-custom-cluster-claims"),
    *("reserved-cluster-claim-suffixes", "cluster-annotations", "registration-auth", "addon-kubeclient-registration-auth"),
    *("client-cert-expiration-seconds", "addon-token-expiration-seconds", "hub-cluster-arn", "managed-cluster-arn"),
    *("managed-cluster-role-suffix", "grpc-bootstrap-config", "grpc-config", "feature-gates", "terminate-on-files"),
    "hub-connection-timeout-seconds",
)
"""All options of OCM's registration agent."""
NOT_TAKEN = "\N{EN DASH}"


def rows(heading: str) -> Iterator[list[str]]:
    """The cells of the table below a heading."""
    below = PAGE.read_text("utf-8").split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in below.splitlines() if line.startswith("| ")]
    return ([cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")] for line in lines[1:])


def run_options() -> set[str]:
    (commands,) = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    return {name for action in commands.choices["run"]._actions for name in action.option_strings}


def test_every_option_of_ocms_agent_is_named() -> None:
    named = {row[0].strip("`").removeprefix("--") for row in rows("Options")}
    assert [name for name in OCMS if name not in named] == []


def test_what_stands_for_an_option_is_an_option() -> None:
    ours = {row[1].strip("`") for row in rows("Options")} - {NOT_TAKEN}
    assert ours - run_options() == set()


def test_what_is_not_taken_has_a_reason() -> None:
    assert [row[0] for row in rows("Options") if row[1] == NOT_TAKEN and not row[3]] == []


@pytest.mark.parametrize(
    ("option", "default"),
    [
        ("--max-custom-cluster-claims", "max_custom_cluster_claims"),
        ("--addon-token-expiration-seconds", "addon_token_expiration_seconds"),
        ("--client-cert-expiration-seconds", "client_cert_expiration_seconds"),
        ("--addon-kubeclient-registration-auth", "addon_kubeclient_registration_auth"),
    ],
)
def test_defaults_are_those_of_the_program(option: str, default: str) -> None:
    (told,) = (row[2] for row in rows("Options") if row[1].strip("`") == option)
    assert told == str(Settings.model_fields[default].default)


def test_the_gates_are_those_of_the_program() -> None:
    told = {row[0].strip("`"): row[1] for row in rows("Feature gates")}
    assert set(told) == set(KNOWN)
    defaults = {name: default for name, default in told.items() if name != "V1beta1CSRAPICompatibility"}
    assert gates_of(defaults) == FeatureGates()
