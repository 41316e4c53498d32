"""The audit policy: matched as kube-apiserver does, told in full when a file is wrong, and what the default remembers."""

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


SECRETS = of("get", "", "secrets", namespace="ns")
STATUS = of("patch", CLUSTERS, "managedclusters/status")
PATH = Attributes("get", "/livez/ping")
MATCHING = (
    *("{}", "{users: [admin]}", "{userGroups: [x, 'system:masters']}", "{verbs: [get, list]}", "{namespaces: [ns]}"),
    *("{resources: [{group: ''}]}", "{resources: [{resources: [configmaps, secrets]}]}"),
    "{resources: [{resources: [secrets], resourceNames: [x]}]}",
)
NOT_MATCHING = (
    *("{users: [bob]}", "{userGroups: [x]}", "{verbs: [list]}", "{namespaces: [other]}", "{resources: [{group: 'x'}]}"),
    *("{resources: [{resources: [secrets], resourceNames: [y]}]}", "{nonResourceURLs: ['*']}"),
)
STATUS_MATCHES = {"managedclusters": False, "managedclusters/status": True, "managedclusters/*": True}
STATUS_MATCHES |= {"*/status": True, "*/approval": False, "*": True}
PATH_MATCHES = {"/livez*": True, "/livez": False, "*": True}


def matches(rule: str, asked: Attributes) -> bool:
    return level(yaml.safe_dump([{"level": "Metadata", **yaml.safe_load(rule)}]), asked) == "Metadata"


def test_rules_match_as_in_kubernetes_and_secret_bodies_are_never_recorded() -> None:
    assert [rule for rule in (*MATCHING, *NOT_MATCHING) if matches(rule, SECRETS)] == list(MATCHING)
    pattern = f"{{resources: [{{group: {CLUSTERS}, resources: ['%s']}}]}}"
    assert {resource: matches(pattern % resource, STATUS) for resource in STATUS_MATCHES} == STATUS_MATCHES
    assert {path: matches(f"{{nonResourceURLs: ['{path}']}}", PATH) for path in PATH_MATCHES} == PATH_MATCHES
    assert matches("{namespaces: ['']}", STATUS)
    assert not matches("{namespaces: ['']}", PATH)
    rules = "[{level: None, users: [admin]}, {level: Request}]"
    created = of("create", CLUSTERS, "managedclusters")
    assert [level(rules, created), level(rules, created, AGENT)] == ["None", "Request"]
    for asked, recorded in (
        (of("create", "", "secrets"), "Metadata"),
        (of("list", "", "secrets"), "Metadata"),
        (of("create", "", "serviceaccounts/token"), "Metadata"),
        (of("create", "authentication.k8s.io", "tokenreviews"), "Metadata"),
        (of("create", HUB, "bootstrapcredentials"), "Metadata"),
        (of("create", CLUSTERS, "managedclusters"), "RequestResponse"),
    ):
        assert level("[{level: RequestResponse}]", asked) == recorded, asked.path
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
    path = tmp_path / "policy.yaml"
    for text, words in (("", "mapping"), ("[1]", "mapping"), ("{", "is not YAML")):
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


def test_default_policy_records_changes_and_reads_of_secrets() -> None:
    found = [(asked, actor, DEFAULT.verdict(actor, asked).level) for asked, actor, _ in REMEMBERED]
    assert found == REMEMBERED
