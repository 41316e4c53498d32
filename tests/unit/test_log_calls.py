"""Every call that writes a line of the log, looked at as it is written: none hands over what is a secret by its name.

What a line shows is redacted as well (`machinery.logs`), and the canaries of the e2e suite look at what was shown.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
METHODS = {"debug", "info", "warning", "error", "critical", "exception", "bind"}
SECRET = re.compile(
    r"(?i)(^|_)(private_key|key_pem|client_key|password|passwd|secret_value|bearer|authorization|token|kubeconfig|credential)$"
)
SOURCE = {"path", "source", "place", "name", "id"}
"""Attributes that say where a secret lies, or which one it is."""


@cache
def calls() -> list[tuple[str, ast.Call]]:
    """Place and call of each line, in all four programs."""
    return list(_found())


def _found() -> Iterator[tuple[str, ast.Call]]:
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


def test_no_line_is_handed_a_secret_by_its_name() -> None:
    found = [
        f"{place}: {ast.unparse(value)}"
        for place, call in calls()
        for value in shown(call)
        if SECRET.search(_word(value)) and not _is_told_apart(value, call)
    ]
    assert found == []


def _is_told_apart(value: ast.expr, call: ast.Call) -> bool:
    """Only a part of it is shown that is no secret: `credential.id`."""
    return any(isinstance(node, ast.Attribute) and node.value is value and node.attr in SOURCE for node in ast.walk(call))


def test_the_calls_that_write_lines_are_found() -> None:
    found = [place for place, _ in calls()]
    assert len(found) > 150
    assert any(place.startswith("hub/controllers/chronicle.py") for place in found)


def test_a_line_with_a_secret_would_be_found() -> None:
    for text in ("log.info('x', a=token)", "log.info(f'{identity.private_key}')", "structlog.get_logger('x').error(password)"):
        (call,) = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and _is_a_line(node.func)]
        assert any(SECRET.search(_word(value)) for value in shown(call))
    (harmless,) = [node for node in ast.walk(ast.parse("log.info('x', a=credential.id)")) if isinstance(node, ast.Call)]
    assert all(
        _is_told_apart(value, harmless) for value in shown(harmless) if isinstance(value, ast.Name) and value.id == "credential"
    )
