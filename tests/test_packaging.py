"""The wheels: all that the packages need at run time, and nothing else. The trial gear has one of its own."""

import ast
import configparser
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from email.message import Message
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("schemas", "audit", "analytics", "streams", "service")
TRIAL = ROOT / "trial"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
TRIAL_PROJECT = tomllib.loads((TRIAL / "pyproject.toml").read_text("utf-8"))
DEPENDENCIES = PROJECT["project"]["dependencies"]
EXTRAS = PROJECT["project"]["optional-dependencies"]
OPTIONAL = [requirement for extra in EXTRAS.values() for requirement in extra]
DATA_FOLDERS = ("schemas/avsc", "schemas/history", "audit/methodologies", "analytics/sql")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """The wheel as it would be published."""
    with zipfile.ZipFile(built(ROOT, tmp_path_factory.mktemp("wheel"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def trial_wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """The wheel of the trial gear."""
    with zipfile.ZipFile(built(TRIAL, tmp_path_factory.mktemp("trial"))) as opened:
        yield opened


def built(project: Path, folder: Path) -> Path:
    """The wheel of a project, built into an empty folder."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=project, check=True, capture_output=True, timeout=600)
    (path,) = folder.iterdir()
    return path


def files_of(folder: Path, *packages: str) -> set[str]:
    """The files of packages in a folder, relative to it."""
    return {
        path.relative_to(folder).as_posix()
        for package in packages
        for path in (folder / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def about(wheel: zipfile.ZipFile, name: str) -> str:
    """A file of the wheel's metadata."""
    (path,) = (entry for entry in wheel.namelist() if entry.endswith(f".dist-info/{name}"))
    return wheel.read(path).decode()


def description(wheel: zipfile.ZipFile) -> Message:
    """The wheel's core metadata."""
    return Parser().parsestr(about(wheel, "METADATA"))


def test_the_wheel_carries_every_file_of_the_packages(wheel: zipfile.ZipFile) -> None:
    """A pattern in .gitignore also keeps a file out of the wheel; schemas, policies and queries are missed only at run time."""
    assert files_of(ROOT, *PACKAGES) - set(wheel.namelist()) == set()


@pytest.mark.parametrize("folder", DATA_FOLDERS)
def test_the_wheel_carries_the_data_of(wheel: zipfile.ZipFile, folder: str) -> None:
    """What is read through importlib.resources has to be there in an installation, not only in the repository."""
    assert [name for name in wheel.namelist() if name.startswith(f"{folder}/") and not name.endswith(".py")]


def test_the_wheel_holds_nothing_but_the_packages(wheel: zipfile.ZipFile) -> None:
    """Tests, benchmarks and the trial gear would be installed as top-level names of everybody's environment."""
    assert {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" not in name} == {*PACKAGES}


def test_the_trial_gear_has_a_wheel_of_its_own(trial_wheel: zipfile.ZipFile) -> None:
    """Its texts and rules are data, which is missed only when the demo runs."""
    held = {name for name in trial_wheel.namelist() if ".dist-info/" not in name}

    assert held == files_of(TRIAL, "driftline_trial")
    assert {"driftline_trial/demo/fleet.yaml", "driftline_trial/simulator/rules.yaml"} <= held
    assert about(trial_wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_text("utf-8")


def test_the_trial_gear_goes_with_the_same_version() -> None:
    """It uses modules of Driftline, which any version may change; what else it imports comes with that version."""
    project = TRIAL_PROJECT["project"]

    assert project["version"] == PROJECT["project"]["version"]
    assert project["dependencies"] == [f"driftline=={project['version']}"]
    assert distributions_imported(TRIAL, "driftline_trial") <= {*map(distribution_name, DEPENDENCIES)}


def test_the_command_is_installed(wheel: zipfile.ZipFile) -> None:
    """Without its entry point an installation is a library nobody can start."""
    scripts = configparser.ConfigParser()
    scripts.read_string(about(wheel, "entry_points.txt"))

    assert dict(scripts["console_scripts"]) == PROJECT["project"]["scripts"]


def test_an_installation_brings_no_development_tools(wheel: zipfile.ZipFile) -> None:
    """What runs the tests is a dependency group, which stays out of the metadata; extras are brought only where they are asked for."""
    extras = {f"{one}; extra == '{name}'" for name, extra in EXTRAS.items() for one in extra}
    assert {*description(wheel).get_all("Requires-Dist", [])} == {*DEPENDENCIES} | extras
    assert description(wheel).get_all("Provides-Extra") == [*EXTRAS]


def test_the_license_travels_with_the_wheel(wheel: zipfile.ZipFile) -> None:
    """The Apache License asks for a copy to go with the work."""
    assert (ROOT / "LICENSE").read_text("utf-8") == about(wheel, "licenses/LICENSE")
    assert description(wheel)["License-Expression"] == PROJECT["project"]["license"]


NEWER_MODULES = {"compression"}
"""Modules that only later versions of the standard library have."""


def distribution_name(text: str) -> str:
    """The normalised name of the distribution that a requirement, a pin or a package's metadata names."""
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=!~;\[ ]", text)[0]).lower()


def distributions_imported(folder: Path, *packages: str) -> set[str]:
    """The distributions that packages in a folder import from, wherever in a module; without ours."""
    owners = metadata.packages_distributions()
    names = set()
    for path in (path for package in packages for path in (folder / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add(node.module or "")
    foreign = {
        name for name in names if name.split(".")[0] not in {*PACKAGES, *packages, *sys.stdlib_module_names, *NEWER_MODULES}
    }
    return {distribution_name(owner) for name in foreign for owner in having(name, owners.get(name.split(".")[0], [name]))}


def having(module: str, owners: Sequence[str]) -> Sequence[str]:
    """Those of the distributions that have a module: several may share a namespace."""
    start = module.replace(".", "/")
    return [
        owner
        for owner in owners
        if len(owners) == 1 or any(str(file).startswith((f"{start}/", f"{start}.py")) for file in metadata.files(owner) or ())
    ]


def test_the_dependencies_are_what_is_imported() -> None:
    """A package that only comes along with another is gone when that one drops it; one that nothing imports is dead weight."""
    assert {distribution_name(requirement) for requirement in (*DEPENDENCIES, *OPTIONAL)} == distributions_imported(
        ROOT, *PACKAGES
    )


def test_every_dependency_is_pinned() -> None:
    """An unpinned dependency makes today's green run say nothing about tomorrow's."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = {distribution_name(line) for line in lines if not line.startswith("#")}
    wanted = [*DEPENDENCIES, *OPTIONAL, *PROJECT["dependency-groups"]["dev"], *PROJECT["build-system"]["requires"]]

    assert {distribution_name(requirement) for requirement in wanted} - pinned == set()
