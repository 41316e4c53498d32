"""Apply each mutation patch to a copy of the tree and check that the tests that it names fail."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
LONGEST = 900  # seconds for the tests of one mutation; tests that hang on the main thread outlive their own time-out
PASSED, FAILED = 0, 1  # pytest's exit codes; any other means that tests were not collected or not run


@dataclass(frozen=True)
class Mutation:
    """A patch that takes one guarantee away, and the ids of the tests that must fail with it."""

    path: Path
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.path.stem

    def missing(self) -> list[str]:
        """The named tests that do not exist."""
        return [test for test in self.tests if not exists(test)]


def exists(test: str) -> bool:
    file, _, function = test.partition("::")
    path = ROOT / file
    return path.is_file() and f"def {function}(" in path.read_text()


def load(names: list[str]) -> list[Mutation]:
    """All mutations, or those with the given names."""
    known = {path.stem: path for path in sorted(FOLDER.glob("*.patch"))}
    if unknown := set(names) - known.keys():
        sys.exit(f"No such mutation: {', '.join(sorted(unknown))}")
    chosen = [known[name] for name in names] or known.values()
    return [Mutation(path, tuple(re.findall(r"^Held-by: (\S+)$", path.read_text(), re.MULTILINE))) for path in chosen]


def copy_tree(copy: Path) -> None:
    """Copy the working tree, uncommitted files included and ignored files left out."""
    listed = subprocess.check_output(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    (copy / ".venv").symlink_to(sys.prefix)


def run_tests(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on the copy: its programs are imported by the tests and by the processes that they start."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "REQUIRE_TOOLS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False, timeout=LONGEST)


def patch(copy: Path, mutation: Mutation, *options: str) -> bool:
    """Whether it could be applied. Without the ceiling git skips all files where the folder lies in a repository."""
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(copy.parent)}
    command = ["git", "apply", *options, str(mutation.path)]
    return subprocess.run(command, cwd=copy, env=environment, check=False).returncode == 0


def judge(copy: Path, mutation: Mutation, *, whole: bool) -> str:
    """Apply one mutation, run its tests or the whole suite, and take it back; what came of it, in words."""
    if not mutation.tests or mutation.missing():
        return "names a test that does not exist: " + ", ".join(mutation.missing())
    if not patch(copy, mutation):
        return "does not apply"
    try:
        done = run_tests(copy, "-n", "2", "-x") if whole else run_tests(copy, "-n", "0", *mutation.tests)
    except subprocess.TimeoutExpired:
        return f"not ended after {LONGEST} s"
    finally:
        patch(copy, mutation, "--reverse")
    if done.returncode not in {PASSED, FAILED}:
        return f"not collected:\n{done.stdout}{done.stderr}"
    verdict = "caught" if done.returncode == FAILED else "survived"
    return f"{verdict}: {done.stdout.splitlines()[-1]}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a mutation; without any, all of them")
    parser.add_argument("--whole", action="store_true", help="run the whole suite instead of the named tests")
    options = parser.parse_args()
    mutations = load(options.names)
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copy = Path(folder)
        copy_tree(copy)
        named = sorted({test for mutation in mutations for test in mutation.tests if exists(test)})
        if named and (unpatched := run_tests(copy, "-n", "2", *named)).returncode != PASSED:
            sys.exit(f"Without any mutation the named tests do not pass:\n{unpatched.stdout}{unpatched.stderr}")
        results: dict[str, str] = {}
        for mutation in mutations:
            results[mutation.name] = judge(copy, mutation, whole=options.whole)
            print(f"{mutation.name:<60} {results[mutation.name]}", flush=True)  # noqa: T201 - a program's output
    counts = Counter(result.splitlines()[0].split(":")[0] for result in results.values())
    print(", ".join(f"{count} {result}" for result, count in counts.most_common()))  # noqa: T201 - a program's output
    return 0 if set(counts) == {"caught"} else 1


if __name__ == "__main__":
    sys.exit(main())
