"""Settings of the Kubernetes CA: off by default, and refused where they cannot be meant."""

import pytest

from hub.settings import SettingsError, load

ON = {"kube_cert_agent": "true", "kube_cert_agent_image": "muster/hub:1"}


def test_it_is_off_and_nobody_comes_in_by_it() -> None:
    settings = load({}, None)
    assert (settings.kube_cert_agent, settings.kubernetes_ca_groups) == (False, ())


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"kube_cert_agent": "true"}, "kube_cert_agent needs kube_cert_agent_image"),
        ({"kubernetes_ca_groups": ("dev",)}, "kubernetes_ca_groups needs kube_cert_agent"),
        ({**ON, "kubernetes_ca_groups": ("dev", "system:masters")}, '"system:masters" cannot count'),
        ({**ON, "kube_cert_agent_labels": ("one",)}, '"one" is no label: write KEY=VALUE'),
        ({**ON, "kube_cert_agent_name": "Not_A_Name"}, '"Not_A_Name" names no Deployment'),
    ],
)
def test_what_cannot_be_meant_is_refused(flags: dict[str, object], expected: str) -> None:
    with pytest.raises(SettingsError, match=expected):
        load(flags, None)


def test_on_it_has_what_it_needs() -> None:
    settings = load({**ON, "kubernetes_ca_groups": ("dev",), "kube_cert_agent_labels": ("a/b=c",)}, None)
    assert (settings.kube_cert_agent, settings.kubernetes_ca_groups) == (True, ("dev",))
