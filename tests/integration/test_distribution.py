"""What `pip install .` brings: the programs, the migrations, the type markers, and nothing of the workshop."""

import configparser
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

from machinery import product

ROOT = Path(__file__).parents[2]
PACKAGES = {"machinery", "hub", "spoke", "hollow"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder], cwd=ROOT, check=True
    )
    [path] = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def metadata(wheel: zipfile.ZipFile, name: str) -> str:
    [found] = [path for path in wheel.namelist() if path.endswith(f".dist-info/{name}")]
    return wheel.read(found).decode()


def test_wheel_holds_our_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    top = {name.split("/")[0] for name in wheel.namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == PACKAGES


def test_wheel_holds_every_file_of_the_packages(wheel: zipfile.ZipFile) -> None:
    held = set(wheel.namelist())
    files = {path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()}
    assert {str(path.relative_to(ROOT)) for path in files if path.suffix != ".pyc"} <= held
    assert {f"{package}/py.typed" for package in PACKAGES} <= held


def test_programs_of_the_wheel_can_be_called(wheel: zipfile.ZipFile) -> None:
    entries = configparser.ConfigParser()
    entries.read_string(metadata(wheel, "entry_points.txt"))
    programs = dict(entries["console_scripts"])
    assert set(programs) == {"hub", "spoke", "hubctl", "hollow", "kubectl-hub", "kubectl_complete-hub"}
    for target in programs.values():
        module, _, function = target.partition(":")
        assert callable(getattr(import_module(module), function))


def test_wheel_bears_the_products_name_and_licence(wheel: zipfile.ZipFile) -> None:
    described = metadata(wheel, "METADATA")
    assert f"\nName: {product.DISTRIBUTION}\n" in described
    assert "\nLicense-Expression: Apache-2.0\n" in described
    assert "Apache License" in metadata(wheel, "licenses/LICENSE")


@pytest.mark.parametrize(
    "lock", ["requirements.lock", "requirements-tracing.lock", "requirements-build.lock", "requirements-dev.lock"]
)
def test_lock_pins_by_hash_and_records_no_address(lock: str) -> None:
    text = (ROOT / lock).read_text()
    pins = [block for block in text.split("\n") if "==" in block]
    assert pins
    assert text.count("--hash=sha256:") >= len(pins)
    assert not [line for line in text.splitlines() if "://" in line or "index" in line or " @ " in line]
