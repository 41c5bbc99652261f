"""The guides' blocks of `sh`: each is run in a shell, beside real servers, and comes to what the guide says."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import httpx2
import pytest
from support.processes import skip_or_fail
from support.receivers import receiving
from support.servers import ROOT, until
from support.typed_guides import GAP, Shell, blocks_in, files_in, is_shown, shell

from schemas.registry import current_schemas, published_schemas
from service.pages.connect import stacks

DOCS, README = ROOT / "docs", ROOT / "README.md"
POLICY = "version: 1\nprojects:\n  shop: {costCapPerSession: 1.0}\n"
READ = ("scores", "anomalies", "runs", "summary", "incidents", "costs")
"""What is asked of a project to see whether two servers have the same."""
RUN = {
    *(
        "http",
        "sql",
        "methodology",
        "tune",
        "sampling-and-cost",
        "replay",
        "ci",
        "openclaw",
        "api",
        "import-exchanges",
        "alerts",
        "back-up",
        "opentelemetry",
        "upgrade",
        "shell",
        "administer",
        "grafana",
        "anchors",
        "find",
        "on-call",
    ),
}
"""Documents whose blocks are run here."""
ELSEWHERE = {
    "agents": "tests/service/test_import_agents.py, on folders of these programs",
    "collector": "tests/kafka/test_otel_collector.py, with a real Collector",
    "deploying": "Docker is not everywhere; the rest runs in tests/kafka/test_guides.py",
    "extend": "tests/test_extending.py, in a copy of the repository",
    "detector": "tests/test_detector_guide.py, in a copy of the repository",
    "evaluation": "tests/test_evaluation_examples.py; the rest are patterns with names to be filled in",
    "kubernetes": "needs a cluster; tests/test_operating_examples.py checks the manifests and the commands in them",
    "producing": "tests/kafka/test_guides.py",
    "simulation": "tests/simulation/test_simulation.py lives through the histories",
    "tutorial": "tests/trial/demo/test_demo.py",
    "handbook": "one of each command, with names to be filled in; tests/test_docs_site.py looks at their options",
    "commands": "what is typed for each command, without values",
}
"""Documents whose blocks are not run here, and why."""


@dataclass(frozen=True)
class Shop:
    """A folder in which an agent was connected over HTTP, by its guide, and judged."""

    folder: Path
    token: str
    operator: str
    answers: dict[str, Any]


def guide(name: str) -> Path:
    """A document by name."""
    (found,) = [path for path in DOCS.rglob(f"{name}.md") if not {"decisions", "reference"} & {*path.parts}]
    return found


def asked(url: str, operator: str) -> dict[str, Any]:
    """What a server says of the project."""
    headers = {"Authorization": f"Bearer {operator}"}
    with httpx2.Client(base_url=f"{url}/api/audit", headers=headers, timeout=300) as client:
        return {name: client.get(f"shop/{name}").raise_for_status().json() for name in READ}


def is_judged(url: str, operator: str) -> bool:
    """Whether the judge has said what it was asked."""
    found = asked(url, operator)
    return bool(found["scores"]["scores"]) and found["summary"]["exchanges"]["pending"] == 0 and bool(found["runs"]["runs"])


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """The guide to HTTP, and the examples of SQL's way over HTTP, in a real shell with a real server and a simulated judge."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "policy.yaml").write_text(POLICY)
    add, token, *calls = blocks_in(guide("http"))
    with shell(folder) as here:
        here.run("driftline simulate-judge")
        here.run("export ANTHROPIC_BASE_URL=http://127.0.0.1:8788 ANTHROPIC_API_KEY=simulated DRIFTLINE_POLICY=policy.yaml")
        operator = here.run("driftline operators add me").split()[0]
        given = here.run(add).split()[0]
        here.run(token, {"dl_…": given})
        answers = "".join(here.run(call) for call in calls)
        assert '"reason":"first_turns"' in answers, answers
        until(lambda: is_judged(here.url, operator), "the judge to answer")
        (query,) = blocks_in(guide("sql"))[:1]
        here.run(f"export DRIFTLINE_TOKEN={operator}")
        until(
            lambda: '"rows"' in here.run(query, {'"project": "ops"': '"project": "shop"'}),
            "the first snapshot, which a query asks for",
        )
        found = asked(here.url, operator)
        here.stop()
    return Shop(folder, given, operator, found)


@pytest.fixture
def copied(shop: Shop, tmp_path: Path) -> Iterator[Shell]:
    """A shell in a copy of the shop's folder, without a server."""
    folder = tmp_path / "here"
    shutil.copytree(shop.folder, folder, ignore=shutil.ignore_patterns("bin", "*.log"))
    with shell(folder, DRIFTLINE_POLICY="policy.yaml") as here:
        yield here


def with_a_judge(here: Shell) -> None:
    """Start one."""
    here.run("driftline simulate-judge\nexport ANTHROPIC_BASE_URL=http://127.0.0.1:8788 ANTHROPIC_API_KEY=simulated")


def test_the_first_exchange_is_answered_as_the_documents_print(tmp_path: Path) -> None:
    """It is the first answer of a server that anybody sees, and the first that is held against what was promised."""
    judge, server, agent, anomalies = (block for block in blocks_in(README) if "driftline" in block or "curl" in block)
    activated = {". .venv/bin/activate\n": ""}
    with shell(tmp_path) as here:
        here.run(judge, activated)
        here.run(
            server, activated | {"ANTHROPIC_BASE_URL": "export ANTHROPIC_BASE_URL", " driftline serve": "\ndriftline serve"}
        )
        answer = here.run(agent, activated | {"TOKEN=": "export TOKEN=", "OPERATOR=": "export OPERATOR="})
        until(lambda: '"judgeModel":"' in here.run(anomalies), "the judge to complete the score")
        here.stop()
    for document in (README, DOCS / "handbook.md"):
        ((_, printed),) = re.findall(r'(```json\n|`)(\{"exchangeId".*?\})\n?`', document.read_text("utf-8"))
        assert is_shown(f"{GAP}{printed}{GAP}", answer)


def test_an_agent_that_was_connected_by_the_guide_is_a_run_with_scores(shop: Shop) -> None:
    """It is the first thing that anybody does with a server."""
    (run,) = shop.answers["runs"]["runs"]
    (score,) = shop.answers["scores"]["scores"]

    assert run["sessionId"] == score["sessionId"] == "s-1"
    assert score["tier2SemanticScore"] is not None


@pytest.mark.parametrize("name", ["methodology", "tune", "sampling-and-cost", "replay", "shell"])
def test_what_a_guide_has_typed_without_a_server_works(name: str, copied: Shell) -> None:
    """A replay that nobody has made cannot be compared, and a label that was renamed is not found."""
    for file, content in files_in(guide(name).read_text("utf-8")).items():
        (copied.folder / file).write_text(content, "utf-8")
    (copied.folder / "strict.yaml").write_text(POLICY + "defaults: {sampling: {routineInterval: 2}}\n")
    with_a_judge(copied)

    for block in blocks_in(guide(name)):
        copied.run(block)


def test_a_table_is_looked_at_mapped_imported_and_judged(tmp_path: Path) -> None:
    """It is how anybody begins who has a file and no server."""
    text = guide("import-exchanges").read_text("utf-8")
    with shell(tmp_path) as here:
        for file, content in files_in(text).items():
            (tmp_path / file).write_text(content, "utf-8")
        with_a_judge(here)
        look, mapped, judged = blocks_in(guide("import-exchanges"))
        assert "no column gives occurred_at" in here.run(look)
        assert "3 exchanges and 0 events imported" in here.run(mapped)
        assert "3 exchanges judged again" in here.run(judged)


def test_the_gates_of_builds_open_and_close(copied: Shell) -> None:
    """A gate that never closes is worse than none."""
    examples = ROOT / "examples" / "evaluation"
    shutil.copytree(examples / "cases", copied.folder / "cases")
    shutil.copy(examples / "profile.yaml", copied.folder / "nightly.yaml")
    with_a_judge(copied)
    copied.run(f"export BUILD=7 DRIFTLINE_PROJECT=shop\ndriftline import events {examples}/events.jsonl")
    worth, drifts = blocks_in(guide("ci"))

    assert "evaluations made" in copied.run(worth, {'"build-$BUILD"': "refunds"}, codes={1})
    copied.run(drifts)
    assert {path.name: path for path in (copied.folder / "results").iterdir()} != {}


def test_openclaw_is_connected_as_the_guide_says(tmp_path: Path) -> None:
    """What was imported and what the plugin sends must be one connection's."""
    with shell(tmp_path) as here:
        shutil.copytree(ROOT / "examples" / "evaluation", tmp_path / ".openclaw")
        (block,) = blocks_in(guide("openclaw"))

        assert "12 exchanges" in here.run(block)
        assert "gateway" in here.run('driftline sql "SELECT DISTINCT connection, project FROM exchanges" --csv')


def test_a_trace_of_the_guide_becomes_an_exchange(tmp_path: Path) -> None:
    """Whoever sets two variables must see a session, without a line of code of ours."""
    with shell(tmp_path) as here:
        added, token, variables, sent, scored = blocks_in(guide("opentelemetry"))
        (tmp_path / "policy.yaml").write_text("version: 1\ndefaults: {traces: {settleSeconds: 0}}\n", encoding="utf-8")
        here.run("export DRIFTLINE_POLICY=policy.yaml")
        made = here.run(added).split()
        here.run(token, {"dl_…": next(word for word in made if word.startswith("dl_"))})
        here.run(variables)

        assert "{}" in here.run(sent)
        until(lambda: "checkout" in here.run(scored, codes={0, 1}), "the trace to be assembled and scored")
        here.stop()


def test_the_guide_to_opentelemetry_has_the_variables_of_the_page() -> None:
    """Its sections of stacks are made from the page's file; these lines stand in a sentence."""
    text = guide("opentelemetry").read_text(encoding="utf-8")
    assert [line for line in stacks().content.splitlines() if f"`{line.removeprefix('export ')}`" not in text] == []


def test_an_operator_of_the_guide_to_the_api_may_read(tmp_path: Path) -> None:
    """Its scopes are those that were named."""
    with shell(tmp_path) as here:
        (block,) = blocks_in(guide("api"))
        here.run(block)

        assert "read" in here.run("driftline operators list")


def test_people_and_programs_of_the_guides_have_the_scopes_that_they_were_given(tmp_path: Path) -> None:
    """A guide that hands out more than it says is found out by whoever abuses it."""
    with shell(tmp_path) as here:
        me, ada = blocks_in(guide("administer"))
        (prometheus,) = blocks_in(guide("grafana"))
        for block in (me, ada, prometheus):
            here.run(block)
        listed = [json.loads(line) for line in here.run("driftline operators list --json").splitlines()]
    people = {one["name"]: one for one in listed}

    assert "admin" in people["me"]["scopes"]
    assert people["me"]["project"] is None
    assert people["ada"]["scopes"] == ["read"]
    assert people["ada"]["project"] == "shop"
    assert people["prometheus"]["scopes"] == ["read"]
    assert people["prometheus"]["project"] is None
    assert [people[name]["tokens"][0]["expiresAt"] is not None for name in ("ada", "me")] == [True, False]


def test_anchors_of_the_guide_are_chosen_and_judged_again(copied: Shell) -> None:
    """Whoever has none learns in the next incident that its cause is not known."""
    block, judges = blocks_in(guide("anchors"))
    with_a_judge(copied)
    default, more, named = block.strip().splitlines()

    assert "1 anchor chosen" in copied.run(default)
    assert "no exchange can become an anchor" in copied.run(more)
    copied.run(named, {"EXCHANGE EXCHANGE": "s-1:1"})
    assert "1 anchor judged again" in copied.run("driftline anchors run --project shop")
    assert [line.partition(" --")[0] for line in judges.strip().splitlines()][:1] == ["driftline simulate-judge"]


def test_questions_over_http_of_the_guides_for_readers_are_answered(copied: Shell, shop: Shop) -> None:
    """A session by its id, the inbox, and a decision on many incidents: what has gone by then is named, not passed over."""
    copied.run("driftline serve")
    copied.run(f"export TOKEN={shop.operator} DRIFTLINE={copied.url} SERVER={copied.url}")
    (session,) = blocks_in(guide("find"))
    (inbox,) = blocks_in(guide("on-call"))
    listed, bulk = inbox.split("\ncurl ")

    assert "s-1:1" in copied.run(session, {"NAME": "shop", "sessions/ID": "sessions/s-1"})
    assert '"incidents":[]' in copied.run(listed)
    assert "the project has no incident with this id" in copied.run(f"curl {bulk}", {'"ops"': '"shop"'})
    copied.stop()


def test_a_channel_of_the_guide_is_told(copied: Shell) -> None:
    """Whoever set it up by night wants to know now."""
    channel, night = blocks_in(guide("alerts"))
    with receiving() as receiver:
        copied.run(channel, {"https://hooks.slack.com/services/…": receiver.url})
        copied.run(night)
        copied.run("driftline alerts test")

        assert ["blocks" in post.document for post in receiver.posts] == [True, True]
    copied.stop()
    copied.run("driftline alerts list")


def test_a_backup_that_was_taken_while_it_ran_answers_the_same(copied: Shell, shop: Shop) -> None:
    """It is looked at for the first time on the day when nothing else is left."""
    if shutil.which("sqlite3") is None:
        skip_or_fail("the guide copies the tokens with sqlite3: install it")
    command, held, tokens, restored, tried = blocks_in(guide("back-up"))
    copied.run("driftline serve")
    (server,) = copied.beside
    copied.run(blocks_in(guide("http"))[2].replace("$TOKEN", shop.token).replace("s-1", "s-2"))
    until(lambda: len(asked(copied.url, shop.operator)["scores"]["scores"]) == 2, "the exchange to have its score")
    before = asked(copied.url, shop.operator)

    copied.run(command)
    copied.run(held, {"PID": str(server.pid)})
    taken = asked(copied.url, shop.operator)
    copied.run(tokens)
    copied.run(tried)
    copied.stop()
    for path in copied.folder.glob("driftline.*"):
        path.unlink()
    copied.run(restored)
    copied.run("driftline serve")

    assert taken == asked(copied.url, shop.operator) == before
    copied.stop()
    (made,) = copied.folder.glob("backups/*")
    for path in copied.folder.glob("driftline.*"):
        path.unlink()
    copied.run(f"cp {made}/driftline.* .")
    copied.run("driftline serve")

    assert asked(copied.url, shop.operator) == before
    copied.stop()


def test_a_database_of_the_first_version_is_upgraded_as_the_guide_says(copied: Shell, shop: Shop) -> None:
    """Everything that was recorded stays, and the fields that are new have their defaults."""
    older(copied.folder / "driftline.duckdb")
    with_a_judge(copied)
    copied.run("driftline doctor")
    for block in blocks_in(guide("upgrade")):
        copied.run(block)
    copied.run("driftline serve")
    found = asked(copied.url, shop.operator)

    assert [one["exchangeId"] for one in shop.answers["scores"]["scores"]] == [
        one["exchangeId"] for one in found["scores"]["scores"]
    ]
    assert len(shop.answers["runs"]["runs"]) == len(found["runs"]["runs"])
    copied.stop()


def older(database: Path) -> None:
    """Take away what came after the first published version of each record: no table has a field that was added since."""
    with duckdb.connect(str(database)) as raw:
        views = raw.execute("SELECT schema_name, view_name FROM duckdb_views() WHERE NOT internal").fetchall()
        for schema, view in views:
            raw.execute(f'DROP VIEW "{schema}"."{view}"')
        for record in current_schemas().values():
            first = {field["name"] for field in published_schemas()[record.name][0].fields}
            for field in record.fields:
                if field["name"] not in first:
                    raw.execute(f'ALTER TABLE log."{record.table}" DROP COLUMN "{field["name"]}"')


def test_every_document_with_commands_is_run_somewhere() -> None:
    """A guide that nobody runs is wrong after the next change."""
    typed = {path.stem for path in DOCS.rglob("*.md") if blocks_in(path)}

    assert typed - RUN - {*ELSEWHERE} == set()
    assert RUN - typed == set()
