"""The published wheels contain what the packages need at run time, and nothing else. The trial gear has its own wheel."""

import ast
import configparser
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("schemas", "audit", "analytics", "streams", "service", "driftline")
TRIAL = ROOT / "trial"
TRIAL_PACKAGE = "driftline_trial"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
TRIAL_PROJECT = tomllib.loads((TRIAL / "pyproject.toml").read_text("utf-8"))
DEPENDENCIES = PROJECT["project"]["dependencies"]
EXTRAS = PROJECT["project"]["optional-dependencies"]
OPTIONAL_DEPENDENCIES = [requirement for requirements in EXTRAS.values() for requirement in requirements]
DATA_FOLDERS = ("schemas/avsc", "schemas/history", "audit/methodologies", "analytics/sql")
NEW_STANDARD_MODULES = {"compression"}
"""Modules of the standard library that the oldest supported Python does not have."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZipFile]:
    """The wheel as it would be published."""
    with ZipFile(build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))) as archive:
        yield archive


@pytest.fixture(scope="module")
def trial_wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZipFile]:
    """The wheel of the trial gear."""
    with ZipFile(build_wheel(TRIAL, tmp_path_factory.mktemp("trial"))) as archive:
        yield archive


def build_wheel(project: Path, folder: Path) -> Path:
    """Build the wheel of a project into an empty folder, and return its path."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=project, check=True, capture_output=True, timeout=600)
    [path] = folder.iterdir()
    return path


def list_files(folder: Path, *packages: str) -> set[str]:
    """Return the files of packages in a folder, relative to it and without compiled code."""
    return {
        path.relative_to(folder).as_posix()
        for package in packages
        for path in (folder / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def read_dist_info(wheel: ZipFile, name: str) -> str:
    """Return the text of a file in the wheel's `.dist-info` folder."""
    [path] = [entry for entry in wheel.namelist() if entry.endswith(f".dist-info/{name}")]
    return wheel.read(path).decode()


def read_metadata(wheel: ZipFile) -> Message:
    """Return the wheel's core metadata."""
    return Parser().parsestr(read_dist_info(wheel, "METADATA"))


def normalize_name(requirement: str) -> str:
    """Return the normalized name of the distribution in a requirement, such as `ruamel-yaml` for `ruamel.yaml>=0.18`."""
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=!~;\[ ]", requirement)[0]).lower()


def imported_modules(path: Path) -> set[str]:
    """Return the modules that a file imports anywhere, except by relative imports."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module)
    return modules


def provides_module(distribution: str, module: str) -> bool:
    """Return whether an installed distribution contains a module."""
    path = module.replace(".", "/")
    return any(str(file).startswith((f"{path}/", f"{path}.py")) for file in metadata.files(distribution) or ())


def imported_distributions(folder: Path, *packages: str) -> set[str]:
    """Return the normalized names of the distributions that packages in a folder import from, without our own."""
    distributions_by_package = metadata.packages_distributions()
    own_packages = {*PACKAGES, *packages, *sys.stdlib_module_names, *NEW_STANDARD_MODULES}
    paths = [path for package in packages for path in (folder / package).rglob("*.py")]
    distributions: set[str] = set()
    for module in set().union(*map(imported_modules, paths)):
        package = module.split(".")[0]
        if package in own_packages:
            continue
        candidates = distributions_by_package.get(package, [module])
        if len(candidates) > 1:  # Several distributions share a namespace package.
            candidates = [candidate for candidate in candidates if provides_module(candidate, module)]
        distributions.update(normalize_name(candidate) for candidate in candidates)
    return distributions


def test_the_wheel_carries_every_file_of_the_packages(wheel: ZipFile) -> None:
    """A pattern in .gitignore also keeps a file out of the wheel, and a missing schema or query fails only at run time."""
    assert list_files(ROOT, *PACKAGES) - set(wheel.namelist()) == set()


@pytest.mark.parametrize("folder", DATA_FOLDERS)
def test_the_wheel_carries_data_files(wheel: ZipFile, folder: str) -> None:
    """Files that are read through importlib.resources must be in an installation, not only in the repository."""
    data_files = [name for name in wheel.namelist() if name.startswith(f"{folder}/") and not name.endswith(".py")]
    assert data_files != []


def test_the_wheel_holds_nothing_but_the_packages(wheel: ZipFile) -> None:
    """Tests or benchmarks in the wheel would become top-level packages of the user's environment."""
    assert {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" not in name} == {*PACKAGES}


def test_the_trial_gear_has_a_wheel_of_its_own(trial_wheel: ZipFile) -> None:
    """Its texts and rules are data files, and a missing one fails only when the demo runs."""
    packaged_files = {name for name in trial_wheel.namelist() if ".dist-info/" not in name}

    assert packaged_files == list_files(TRIAL, TRIAL_PACKAGE)
    assert f"{TRIAL_PACKAGE}/demo/fleet.yaml" in packaged_files
    assert f"{TRIAL_PACKAGE}/simulator/rules.yaml" in packaged_files
    assert read_dist_info(trial_wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_text("utf-8")


def test_the_trial_gear_requires_the_same_version_and_no_other_dependency() -> None:
    """It imports internal modules of Driftline, which may change in any version. That version also brings its other imports."""
    project = TRIAL_PROJECT["project"]

    assert project["version"] == PROJECT["project"]["version"]
    assert project["dependencies"] == [f"driftline=={project['version']}"]
    assert imported_distributions(TRIAL, TRIAL_PACKAGE) <= {*map(normalize_name, DEPENDENCIES)}


def test_the_wheel_declares_the_commands_of_the_project(wheel: ZipFile) -> None:
    """Without its entry point, an installation has no `driftline` command."""
    scripts = configparser.ConfigParser()
    scripts.read_string(read_dist_info(wheel, "entry_points.txt"))

    assert dict(scripts["console_scripts"]) == PROJECT["project"]["scripts"]


def test_the_wheel_requires_only_dependencies_and_extras(wheel: ZipFile) -> None:
    """Users must not have to install the tools that develop and test Driftline."""
    optional = {f"{requirement}; extra == '{extra}'" for extra, requirements in EXTRAS.items() for requirement in requirements}

    assert {*read_metadata(wheel).get_all("Requires-Dist", [])} == {*DEPENDENCIES} | optional
    assert read_metadata(wheel).get_all("Provides-Extra") == [*EXTRAS]


def test_the_wheel_carries_the_license(wheel: ZipFile) -> None:
    """The Apache License requires a copy in every distribution (section 4a)."""
    assert read_dist_info(wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_text("utf-8")
    assert read_metadata(wheel)["License-Expression"] == PROJECT["project"]["license"]


def test_the_dependencies_are_what_is_imported() -> None:
    """A transitive dependency can disappear with any release of the package that brings it; an unused one is dead weight."""
    declared = {normalize_name(requirement) for requirement in [*DEPENDENCIES, *OPTIONAL_DEPENDENCIES]}

    assert imported_distributions(ROOT, *PACKAGES) == declared


def test_every_dependency_is_pinned() -> None:
    """With an unpinned dependency, a test run that passes today may fail tomorrow without a change."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = {normalize_name(line) for line in lines if not line.startswith("#")}
    development = PROJECT["dependency-groups"]["dev"]
    build_system = PROJECT["build-system"]["requires"]
    requirements = [*DEPENDENCIES, *OPTIONAL_DEPENDENCIES, *development, *build_system]

    assert {normalize_name(requirement) for requirement in requirements} - pinned == set()
