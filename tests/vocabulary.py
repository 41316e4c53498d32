"""Checks the words in the names of modules, classes and public functions against vocabulary.txt and the glossary."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("hub", "hubctl", "spoke", "machinery", "hollow")
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
TERM = re.compile(r"^\| ([^|]+) \|", re.MULTILINE)
INHERITED = frozenset(("do_GET",))  # names that a base class of the standard library prescribes
ADVICE = "use a term of Kubernetes, OCM, gRPC or PostgreSQL, or add ours to docs/reference/glossary.md"


def words_of(name: str) -> list[str]:
    """The words of an identifier, lower case: `LeaderLock_v2` has leader, lock and v."""
    return [word.lower() for word in WORD.findall(name)]


def vocabulary() -> frozenset[str]:
    lines = (ROOT / "tests" / "vocabulary.txt").read_text().splitlines()
    listed = " ".join(line for line in lines if not line.startswith("#")).split()
    terms = TERM.findall((ROOT / "docs" / "reference" / "glossary.md").read_text())
    return frozenset(listed).union(*(words_of(term) for term in terms))


def names_in(path: Path) -> Iterator[str]:
    """The public names that a file introduces: its own, and those of its classes, functions and methods."""
    yield path.stem
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and not node.name.startswith("_")
            and node.name not in INHERITED
        ):
            yield node.name


def unknown_names() -> list[str]:
    """The names with a word outside the vocabulary, each with its file."""
    known = vocabulary()
    return [
        f'{path.relative_to(ROOT)}: "{name}" has a word that is not in the vocabulary ({word}): {ADVICE}'
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if not {"wire", "versions"} & set(path.relative_to(ROOT).parts)
        for name in dict.fromkeys(names_in(path))
        for word in words_of(name)
        if word not in known
    ]


if __name__ == "__main__":
    sys.exit("\n".join(unknown_names()) or 0)
