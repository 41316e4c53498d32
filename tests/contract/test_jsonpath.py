"""hubctl prints JSONPath templates as kubectl does."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from hubctl.errors import CommandError
from hubctl.jsonpath import parse_template, rendered
from tests.checks import check_refusal
from tests.fakes.kubectl import DOCUMENT, IN_NO_ORDER, SAME, WRONG

APART = "\n-----\n"
NOT_REFUSED = {
    "{range .spec.list[*]}{.name}",  # kubectl prints the body, and then what follows once more
    ".metadata.name",  # kubectl prints the text itself
}

pytestmark = pytest.mark.kubectl


def printed(folder: Path, template: str) -> subprocess.CompletedProcess[str]:
    """By a kubectl without any server: it sets a label on a file and prints the object."""
    file = folder / "thing.json"
    file.write_text(json.dumps(DOCUMENT))
    command = ("kubectl", "label", "--local", "--overwrite", "-f", str(file), "x=y", "-o", f"jsonpath={template}")
    environment = {**os.environ, "HOME": str(folder), "KUBECONFIG": str(folder / "none")}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30, env=environment)


def formatted(template: str, text: str) -> str:
    return " ".join(sorted(text.split())) if template in IN_NO_ORDER else text


def test_kubectl_prints_the_same(tmp_path: Path) -> None:
    message = printed(tmp_path, f'{{"{APART}"}}'.replace("\n", "\\n").join(SAME))
    assert message.returncode == 0, message.stderr
    printed_by_kubectl = dict(zip(SAME, message.stdout.split(APART), strict=True))
    assert {template: formatted(template, text) for template, text in printed_by_kubectl.items()} == {
        template: formatted(template, text) for template, text in SAME.items()
    }


def test_kubectl_prints_documents_and_refuses_templates_as_we_do(tmp_path: Path) -> None:
    template = "{@}"
    assert printed(tmp_path, template).stdout == rendered(parse_template(template), DOCUMENT)
    for template in [template for template in WRONG if template not in NOT_REFUSED][::4]:
        assert printed(tmp_path, template).returncode != 0, template
        check_refusal(CommandError, lambda each: rendered(parse_template(each), DOCUMENT), template)
