"""What `pip install .` brings: the programs, the migrations, the type markers, and nothing of the workshop."""

import configparser
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

from machinery import product

ROOT = Path(__file__).parents[2]
PACKAGES = {"machinery", "hub", "hubctl", "spoke", "hollow"}


def metadata(wheel: zipfile.ZipFile, name: str) -> str:
    [found] = [path for path in wheel.namelist() if path.endswith(f".dist-info/{name}")]
    return wheel.read(found).decode()


def test_wheel_holds_our_packages_programs_and_licence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True)
    [path] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        held = set(wheel.namelist())
        assert {name.split("/")[0] for name in held if ".dist-info/" not in name} == PACKAGES
        files = {path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()}
        assert {str(path.relative_to(ROOT)) for path in files if path.suffix != ".pyc"} <= held
        assert {f"{package}/py.typed" for package in PACKAGES} <= held

        entries = configparser.ConfigParser()
        entries.read_string(metadata(wheel, "entry_points.txt"))
        programs = dict(entries["console_scripts"])
        assert set(programs) == {"hub", "spoke", "hubctl", "hollow", "kubectl-hub", "kubectl_complete-hub"}
        for target in programs.values():
            module, _, function = target.partition(":")
            assert callable(getattr(import_module(module), function))

        described = metadata(wheel, "METADATA")
        assert f"\nName: {product.DISTRIBUTION}\n" in described
        assert "\nLicense-Expression: Apache-2.0\n" in described
        assert "Apache License" in metadata(wheel, "licenses/LICENSE")


def test_locks_pin_by_hash_and_record_no_address() -> None:
    for lock in ("", "-tracing", "-build", "-dev"):
        text = (ROOT / f"requirements{lock}.lock").read_text()
        pins = [line for line in text.splitlines() if "==" in line]
        assert pins
        assert text.count("--hash=sha256:") >= len(pins)
        assert not [line for line in text.splitlines() if "://" in line or "index" in line or " @ " in line], lock
