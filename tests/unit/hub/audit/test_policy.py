"""The audit policy: matched as kube-apiserver does, told in full when a file is wrong, and what the default remembers."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from hub.audit import default_policy
from hub.audit.policyfile import parse_policy, read_policy
from hub.domain.audit import Level, Stage
from machinery.apiserver.access import Attributes
from machinery.apiserver.storage import Actor
from machinery.errors import InvalidError
from machinery.product import GROUP_SUFFIX

ADMIN = Actor("admin", ("system:masters",))
AGENT = Actor("system:open-cluster-management:edge:a", ("system:open-cluster-management:managed-clusters",))
CLUSTERS, HUB = f"cluster.{GROUP_SUFFIX}", f"hub.{GROUP_SUFFIX}"


def of(verb: str, group: str, resource: str, name: str = "x", namespace: str = "") -> Attributes:
    plain, _, part = resource.partition("/")
    return Attributes(verb, f"/apis/{group}/v1/{plain}", group, "v1", plain, part, namespace, name)


def level(rules: str, asked: Attributes, actor: Actor = ADMIN) -> str:
    head = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy"}
    return parse_policy({**head, "rules": yaml.safe_load(rules)}, "the policy").verdict(actor, asked).level.value


@dataclass(frozen=True)
class Match:
    rule: str
    asked: Attributes
    found: str = "Metadata"


SECRETS = of("get", "", "secrets", namespace="ns")
STATUS = of("patch", CLUSTERS, "managedclusters/status")
PATH = Attributes("get", "/livez/ping")
MATCHES = [
    Match("{}", SECRETS),
    Match("{users: [admin]}", SECRETS),
    Match("{users: [bob]}", SECRETS, found="None"),
    Match("{userGroups: [x, 'system:masters']}", SECRETS),
    Match("{userGroups: [x]}", SECRETS, found="None"),
    Match("{verbs: [get, list]}", SECRETS),
    Match("{verbs: [list]}", SECRETS, found="None"),
    Match("{namespaces: [ns]}", SECRETS),
    Match("{namespaces: [other]}", SECRETS, found="None"),
    Match("{namespaces: ['']}", STATUS),
    Match("{namespaces: ['']}", PATH, found="None"),
    Match("{resources: [{group: ''}]}", SECRETS),
    Match("{resources: [{group: 'x'}]}", SECRETS, found="None"),
    Match("{resources: [{resources: [configmaps, secrets]}]}", SECRETS),
    Match("{resources: [{resources: [secrets], resourceNames: [x]}]}", SECRETS),
    Match("{resources: [{resources: [secrets], resourceNames: [y]}]}", SECRETS, found="None"),
    Match(f"{{resources: [{{group: {CLUSTERS}, resources: [managedclusters]}}]}}", STATUS, found="None"),
    Match(f"{{resources: [{{group: {CLUSTERS}, resources: [managedclusters/status]}}]}}", STATUS),
    Match(f"{{resources: [{{group: {CLUSTERS}, resources: ['managedclusters/*']}}]}}", STATUS),
    Match(f"{{resources: [{{group: {CLUSTERS}, resources: ['*/status']}}]}}", STATUS),
    Match(f"{{resources: [{{group: {CLUSTERS}, resources: ['*/approval']}}]}}", STATUS, found="None"),
    Match(f"{{resources: [{{group: {CLUSTERS}, resources: ['*']}}]}}", STATUS),
    Match("{nonResourceURLs: ['/livez*']}", PATH),
    Match("{nonResourceURLs: ['/livez']}", PATH, found="None"),
    Match("{nonResourceURLs: ['*']}", PATH),
    Match("{nonResourceURLs: ['*']}", SECRETS, found="None"),
]


@pytest.mark.parametrize("match", MATCHES, ids=lambda match: f"{match.rule} {match.asked.path}")
def test_rules_match_as_in_kubernetes(match: Match) -> None:
    rule = {"level": "Metadata", **yaml.safe_load(match.rule)}
    assert level(yaml.safe_dump([rule]), match.asked) == match.found


def test_the_first_rule_that_matches_decides() -> None:
    rules = "[{level: None, users: [admin]}, {level: Request}]"
    asked = of("create", CLUSTERS, "managedclusters")
    assert level(rules, asked) == "None"
    assert level(rules, asked, AGENT) == "Request"


@pytest.mark.parametrize(
    "asked",
    [
        of("create", "", "secrets"),
        of("list", "", "secrets"),
        of("create", "", "serviceaccounts/token"),
        of("create", "authentication.k8s.io", "tokenreviews"),
        of("create", HUB, "bootstrapcredentials"),
    ],
    ids=lambda asked: asked.path,
)
def test_bodies_of_secrets_and_tokens_are_never_remembered(asked: Attributes) -> None:
    assert level("[{level: RequestResponse}]", asked) == "Metadata"
    assert level("[{level: RequestResponse}]", of("create", CLUSTERS, "managedclusters")) == "RequestResponse"


def test_stages_are_left_out_by_policy_and_by_rule() -> None:
    content = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "Panic"],
        "rules": [{"level": "Metadata", "omitStages": ["ResponseStarted"]}],
    }
    verdict = parse_policy(content, "p").verdict(ADMIN, SECRETS)
    assert [stage for stage in Stage if verdict.remembers(stage)] == [Stage.RESPONSE_COMPLETE, Stage.DROPPED]


def test_everything_wrong_with_a_file_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        """
apiVersion: audit.k8s.io/v2
kind: Policy
omitStages: [Later]
colour: red
rules:
- level: Everything
- level: Metadata
  users: [1]
  nonResourceURLs: [livez, "/a*b"]
  resources:
  - group: apps/v1
    resourceNames: [x]
- just a word
"""
    )
    with pytest.raises(InvalidError) as refused:
        read_policy(path)
    assert str(refused.value).splitlines() == [
        f"the audit policy {path} has 12 problems:",
        '  - the file: there is no field "colour"',
        '  - apiVersion: must be "audit.k8s.io/v1"',
        "  - rules[0].level: must be one of None, Metadata, Request, RequestResponse",
        "  - rules[1]: nonResourceURLs cannot stand beside resources or namespaces",
        '  - rules[1].nonResourceURLs[0]: "livez" must begin with "/", and "*" may only be its end',
        '  - rules[1].nonResourceURLs[1]: "/a*b" must begin with "/", and "*" may only be its end',
        "  - rules[1].users: must be a list of strings",
        '  - rules[1].resources[0].group: must be a group without its version, such as "cluster.example.io"',
        "  - rules[1].resources[0].resourceNames: need resources to be names of",
        "  - rules[2]: must be a mapping",
        "  - rules[2].level: must be one of None, Metadata, Request, RequestResponse",
        "  - omitStages: must be of RequestReceived, ResponseStarted, ResponseComplete, Panic",
    ]


@pytest.mark.parametrize(("text", "words"), [("", "mapping"), ("[1]", "mapping"), ("{", "is not YAML")])
def test_a_file_that_is_no_policy_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(InvalidError, match=words):
        read_policy(path)
    with pytest.raises(InvalidError, match="cannot be read"):
        read_policy(tmp_path / "missing.yaml")


DEFAULT = default_policy(GROUP_SUFFIX)
REMEMBERED = [
    (of("create", CLUSTERS, "managedclusters"), ADMIN, Level.REQUEST),
    (of("patch", CLUSTERS, "managedclusters"), ADMIN, Level.REQUEST),
    (of("delete", CLUSTERS, "managedclusters"), ADMIN, Level.REQUEST),
    (of("connect", CLUSTERS, "managedclusters/session"), AGENT, Level.METADATA),
    (of("update", "certificates.k8s.io", "certificatesigningrequests/approval"), ADMIN, Level.REQUEST),
    (of("create", "certificates.k8s.io", "certificatesigningrequests"), AGENT, Level.METADATA),
    (of("create", "rbac.authorization.k8s.io", "clusterroles"), ADMIN, Level.REQUEST),
    (of("create", HUB, "bootstrapcredentials"), ADMIN, Level.METADATA),
    (of("get", "", "secrets"), ADMIN, Level.METADATA),
    (of("watch", "", "secrets"), ADMIN, Level.METADATA),
    (of("create", "", "serviceaccounts/token"), ADMIN, Level.METADATA),
    (of("deletecollection", "", "configmaps"), ADMIN, Level.METADATA),
    (of("patch", CLUSTERS, "managedclusters/status"), ADMIN, Level.REQUEST),
    (of("get", CLUSTERS, "managedclusters"), ADMIN, Level.NONE),
    (of("get", HUB, "auditrecords"), ADMIN, Level.NONE),
    (of("update", "coordination.k8s.io", "leases", "managed-cluster-lease"), AGENT, Level.NONE),
    (of("patch", CLUSTERS, "managedclusters/status"), AGENT, Level.NONE),
    (of("create", "", "events"), AGENT, Level.NONE),
    (of("create", "authorization.k8s.io", "selfsubjectaccessreviews"), ADMIN, Level.NONE),
    (Attributes("get", "/healthz"), ADMIN, Level.NONE),
]


@pytest.mark.parametrize(("asked", "actor", "expected"), REMEMBERED, ids=lambda case: getattr(case, "path", str(case)))
def test_default_policy_remembers_changes_and_secrets(asked: Attributes, actor: Actor, expected: Level) -> None:
    assert DEFAULT.verdict(actor, asked).level is expected
