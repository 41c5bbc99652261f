"""What a command loads: whoever lists rows waits for no rule, and a server without a judge holds no client of its API."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from service.cli.command_groups import COMMANDS
from service.cli.main import run

ROOT = Path(__file__).parents[3]
HEAVY = ("anthropic", "fastapi", "uvicorn", "numpy", "rocksdict", "aiokafka", "kafka", "httpx2", "yaml", "pydantic")
RULES = ("audit.detectors", "audit.policy", "audit.evaluation", "streams.topology", "streams.engine")
AT_REST = """
import asyncio, sys
from pathlib import Path

import service.cli.commands.serving
from service.setup.access import AccessStore, access_file
from service.setup.judge_setup import NONE, OpenedJudge
from service.setup.settings import Settings
from service.server import server_lifecycle as server
from service.setup.workspace import open_workspace

async def rest(settings):
    with open_workspace(settings, writes=True) as workspace, AccessStore(access_file(settings.database), workspace.now) as access:
        engine = server._open_engine(workspace, OpenedJudge(None, NONE))
        app = server.create_app(engine, access, server.api_settings(settings, ()))
        tasks = server.periodic_tasks_of(engine, settings, app.state.context)
        await engine.start()
        while not engine.state().ready:
            await asyncio.sleep(0.005)
        for task in tasks:
            await task.run()
        found = list(sys.modules)
        await engine.stop(0)
        await app.state.query_pool.close()
        return found

print(*asyncio.run(rest(Settings(database=Path(sys.argv[1])))))
"""
"""A server with a run in its database, up to the moment at which each of its periodic tasks has run once."""
LOADED = "import sys; {0}; print('\\n'.join(sys.modules))"


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a new process loads for a statement."""
    command = [sys.executable, "-P", "-c", LOADED.format(statement)]
    process = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, check=True, capture_output=True, text=True)
    return set(process.stdout.split())


@pytest.mark.parametrize("command", ["runs", "scores"])
def test_a_listing_command_loads_no_rule(command: str) -> None:
    """Loading the rules takes longer than reading the database."""
    modules = loaded_by(f"from service.cli.main import application; application(['{command}'])")

    assert sorted(name for name in modules if name.startswith((*HEAVY, *RULES))) == []


def test_the_help_of_a_command_loads_no_database() -> None:
    """Neither does a command whose database a server has open."""
    modules = loaded_by("from service.cli.main import application; application()")

    assert not {"duckdb", "polars", "numpy", "anthropic"} & modules


def test_listing_the_commands_loads_no_command() -> None:
    """`driftline --help` is what everybody types first."""
    modules = loaded_by("from service.cli.main import _command_list; _command_list()")

    assert sorted(name for name in modules if name.startswith((*HEAVY, *RULES, "duckdb", "polars"))) == []
    assert sorted(name for name in modules if name.startswith("service.cli.commands.")) == []


def test_a_server_without_a_judge_loads_no_client() -> None:
    """The client's 2,900 modules take 45 MB and a second."""
    modules = loaded_by("import service.server.server_lifecycle")

    assert not {"anthropic", "aiokafka", "faust"} & modules


def test_an_idle_server_loads_no_dataframe_library(tmp_path: Path) -> None:
    """Polars and numpy take 80 MB, and are loaded by the first flush or check."""
    python, environment = [sys.executable, "-P"], {"PYTHONPATH": str(ROOT)}
    database, events = tmp_path / "fleet.duckdb", ROOT / "examples" / "session.json"
    imported = ["-m", "service.cli.main", "import", "events", str(events), "--db", str(database)]
    subprocess.run([*python, *imported], env=environment, check=True, capture_output=True)
    at_rest = [*python, "-c", AT_REST, str(database)]
    modules = subprocess.run(at_rest, env=environment, check=True, capture_output=True, text=True).stdout.split()

    assert "rocksdict" in modules
    assert not {"polars", "numpy", "httpx2", "anthropic", "faust", "aiokafka", "kafka"} & set(modules)


def test_the_list_shows_each_command_with_its_summary() -> None:
    """It loads no command, so the summaries are stored beside the command names."""
    command = [sys.executable, "-P", "-m", "service.cli.main", "--help"]
    process = subprocess.run(
        command, env={"PYTHONPATH": str(ROOT), "COLUMNS": "200"}, check=True, capture_output=True, text=True
    ).stdout

    assert [name for name, known in COMMANDS.items() if not re.search(rf" {name} +{re.escape(known.summary)} ", process)] == []


def test_an_unknown_command_is_an_error() -> None:
    """The list that loads no command must still recognise unknown ones."""
    assert run(["no-such-command"]) == 2
