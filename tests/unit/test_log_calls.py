"""Every call that writes a line of the log, looked at as it is written: none hands over what is a secret by its name.

What a line shows is redacted as well (`machinery.logs`), and the canaries of the e2e suite look at what was shown.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
METHODS = {"debug", "info", "warning", "error", "critical", "exception", "bind"}
SECRET = re.compile(
    r"(?i)(^|_)(private_key|key_pem|client_key|password|passwd|secret_value|bearer|authorization|token|kubeconfig|credential)$"
)
SOURCE = {"path", "source", "place", "name", "id"}
"""Attributes that say where a secret lies, or which one it is."""


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Place and call of each line, in all four programs."""
    for folder in ("hub", "machinery", "spoke", "hollow"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            for node in ast.walk(ast.parse(text if "get_logger" in text else "")):
                if isinstance(node, ast.Call) and _is_a_line(node.func):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def _is_a_line(function: ast.expr) -> bool:
    if not isinstance(function, ast.Attribute) or function.attr not in METHODS:
        return False
    owner = ast.unparse(function.value)
    return (
        owner in ("log", "_log", "tell", "logger") or owner.endswith(("_log", "get_logger(__name__)")) or "get_logger(" in owner
    )


def shown(call: ast.Call) -> Iterator[ast.expr]:
    """What of a call ends in the line: arguments, and what is put into texts."""
    for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
        for node in ast.walk(argument):
            if isinstance(node, ast.Name | ast.Attribute):
                yield node


def _word(value: ast.expr) -> str:
    return value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else ""


def _is_told_apart(value: ast.expr, call: ast.Call) -> bool:
    """Only a part of it is shown that is no secret: `credential.id`."""
    return any(isinstance(node, ast.Attribute) and node.value is value and node.attr in SOURCE for node in ast.walk(call))


def test_no_line_is_handed_a_secret_by_its_name() -> None:
    lines = list(calls())
    assert len(lines) > 150
    found = [
        f"{place}: {ast.unparse(value)}"
        for place, call in lines
        for value in shown(call)
        if SECRET.search(_word(value)) and not _is_told_apart(value, call)
    ]
    assert not found, "\n".join(found)
