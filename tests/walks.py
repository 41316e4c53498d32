"""Checks that each function named as `path/file.py:function` or `path/file.py:Class.method` in docs/explanation exists."""

import ast
import re
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
STEP = re.compile(r"`([\w/.-]+\.py):([\w.]+)`")


@cache
def names_of(path: str) -> frozenset[str]:
    """The classes and functions that a file defines, nested ones with the names around them."""
    file = ROOT / path
    found: set[str] = set()

    def collect(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(prefix + child.name)
                inner = f"{prefix}{child.name}."
            collect(child, inner)

    if file.is_file():
        collect(ast.parse(file.read_text()), "")
    return frozenset(found)


def missing_steps() -> list[str]:
    """The steps without a function, each with the page and the line that names it."""
    return [
        f"{page.relative_to(ROOT)}:{number}: {path}:{name} does not exist"
        for page in sorted((ROOT / "docs" / "explanation").glob("*.md"))
        for number, line in enumerate(page.read_text().splitlines(), 1)
        for path, name in STEP.findall(line)
        if name not in names_of(path)
    ]


if __name__ == "__main__":
    sys.exit("\n".join(missing_steps()) or 0)
