"""A real kubectl with its own home and kubeconfig, and templates with what kubectl and hubctl print of them."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.programs import STDOUT, command

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{{name: hub, cluster: {{server: "{url}"}}}}]
users: [{{name: admin, user: {{}}}}]
contexts: [{{name: hub, context: {{cluster: hub, user: admin}}}}]
current-context: hub
"""
EDITOR = "sed -i -e /leaseDurationSeconds/s/30/31/"
_CHANCE = (
    (re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "<time>"),
    (re.compile(r"(?<=\s)(\d+[smhdy])+(?=\s|$)", re.MULTILINE), "<age>"),
    (re.compile(r"[ \t]+"), " "),
    (re.compile(r" $", re.MULTILINE), ""),
)


@dataclass(frozen=True, slots=True)
class Said:
    """What a command said, both streams in one."""

    exit: int
    output: str

    @property
    def lines(self) -> list[str]:
        return shown(self.output).splitlines()


def shown(output: str) -> str:
    """The output without ages, instants and the width of columns."""
    for pattern, replacement in _CHANCE:
        output = pattern.sub(replacement, output)
    return output.strip()


class Kubectl:
    """Runs commands in `directory`, against the server at `url`, or the one of a kubeconfig."""

    def __init__(self, directory: Path, url: str = "", kubeconfig: Path | None = None) -> None:
        self._directory = directory
        if kubeconfig is None:
            kubeconfig = directory / "kubeconfig"
            kubeconfig.write_text(KUBECONFIG.format(url=url))
        self._environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(directory), "KUBE_EDITOR": EDITOR}

    async def __call__(self, *arguments: str, given: str = "") -> Said:
        ended = await command("kubectl", *arguments, given=given, cwd=self._directory, env=self._environment, stderr=STDOUT)
        return Said(ended.returncode, ended.stdout)


_TABLES: dict[str, Any] = yaml.safe_load((Path(__file__).parents[1] / "golden" / "jsonpaths.yaml").read_text())
DOCUMENT: dict[str, Any] = _TABLES["document"]
SAME, IN_NO_ORDER, KINDER, WRONG = (_TABLES[name] for name in ("same", "in_no_order", "kinder", "wrong"))
