"""What the documents tell a reader to type exists, and what they link to is there."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "bench").glob("*.md"),
    *(ROOT / "charts").rglob("*.md"),
]
PROGRAMS = {"hub": "hub", "spoke": "spoke", "hubctl": "hub.cli", "hollow": "hollow"}
OTHERS = {"python3", "kubectl", "helm", "docker", "git", "export", "kill", "curl"}
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


def commands() -> Iterator[tuple[str, list[str]]]:
    for document in DOCUMENTS:
        for block in BLOCK.findall(document.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                if line.strip() and not line.lstrip().startswith("#"):
                    yield document.name, shlex.split(line, comments=True)


COMMANDS = list(commands())


@cache
def help_of(module: str, words: tuple[str, ...]) -> str:
    answer = subprocess.run(
        [sys.executable, "-m", module, *words, "--help"], capture_output=True, text=True, check=False, timeout=60
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def known_flags(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text))


def positional(words: list[str]) -> tuple[str, ...]:
    """The words before the first flag after the command: sub-commands and their arguments."""
    kept: list[str] = []
    for word in words:
        if word.startswith("-"):
            break
        kept.append(word)
    return tuple(kept)


@pytest.mark.parametrize(("document", "words"), COMMANDS, ids=[f"{name}: {' '.join(words[:4])}" for name, words in COMMANDS])
def test_documented_command_exists(document: str, words: list[str]) -> None:
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    program = Path(words[0]).name
    if program == "make":
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert positional(words[1:2]) == () or words[1] in targets
    elif program in PROGRAMS:
        subcommand = positional(words[1:])
        known = known_flags(help_of(PROGRAMS[program], ())) | known_flags(help_of(PROGRAMS[program], subcommand))
        given = {word.partition("=")[0] for word in words[1:] if word.startswith("-") and word != "-"}
        assert given <= known, f"{document}: {program} {' '.join(subcommand)} has no {', '.join(sorted(given - known))}"
    elif program == "python":
        assert words[1] == "-m"
        assert find_spec(words[2]), f"{document}: there is no module {words[2]}"
    else:
        assert program in OTHERS | {"pip"}, f"{document}: nobody checks that {program} exists"


def test_readme_shows_the_two_commands_and_the_walk_by_hand() -> None:
    shown = {" ".join(words[:3]) for name, words in COMMANDS if name == "README.md"}
    assert {"make demo", "make test", "hub serve", "hubctl create bootstrap-kubeconfig", "hubctl accept cluster1"} <= shown


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_linked_files_exist(document: Path) -> None:
    missing = [link for link in LINK.findall(document.read_text()) if not (document.parent / link).exists()]
    assert missing == []


def test_settings_that_the_readme_names_are_settings_of_the_hub() -> None:
    table = re.findall(r"^\| .* \| (.*) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    named = {flag for cell in table for flag in re.findall(r"`(--[a-z-]+)`", cell)}
    assert named
    assert named <= known_flags(help_of("hub", ("serve",)))


def test_every_document_is_found_from_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link).resolve() for link in LINK.findall(index.read_text())}
    kinds = [index.parent / kind for kind in ("tutorial", "how-to", "reference", "explanation")]
    assert {path for kind in kinds for path in kind.glob("*.md")} <= linked


NAMED = re.compile(r"`((?:hub|spoke|machinery|hollow|tests|proto|bench|docs|charts)/[\w./-]*)`")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_a_document_names_exist(document: Path) -> None:
    assert [path for path in NAMED.findall(document.read_text()) if not (ROOT / path).exists()] == []


HELD = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
FAULTS = re.findall(r"^\| (?!fault \|).*$", (ROOT / "docs" / "reference" / "faults.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("row", FAULTS, ids=lambda row: row.split(" | ")[0][2:])
def test_a_fault_is_held_by_tests_that_exist(row: str) -> None:
    named = HELD.findall(row)
    assert named
    assert [test for file, test in named if f"def {test}(" not in (ROOT / file).read_text()] == []
