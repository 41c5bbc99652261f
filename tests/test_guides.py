"""The `sh` blocks of the guides, run in a shell with real servers: each must give the result that the guide describes."""

from __future__ import annotations

import json
import math
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

from audit.cost import PromptBound, usd_of
from audit.exchanges.prompts import ExchangeQuestions
from audit.policy import Policy
from benchmarks.bench_caps import demo_exchanges
from schemas.registry import current_schemas, published_schemas
from service.pages.connect import stacks
from streams.judging.rejudging import estimate_bulk

DOCS, README = ROOT / "docs", ROOT / "README.md"
POLICY = "version: 1\nprojects:\n  shop: {costCapPerSession: 1.0}\n"
PROJECT_ENDPOINTS = ("scores", "anomalies", "runs", "summary", "incidents", "costs")
"""Endpoints of a project whose answers show whether two servers have the same data."""
TESTED_HERE = {
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
    "verify",
    "shell",
    "administer",
    "grafana",
    "anchors",
    "find",
    "on-call",
}
"""Documents whose blocks this module runs."""
NOT_TESTED_HERE = {
    "agents": "tests/service/test_import_agents.py, on folders of these programs",
    "collector": "tests/kafka/test_otel_collector.py, with a real Collector",
    "deploying": "needs Docker; tests/kafka/test_guides.py runs the blocks without it",
    "extend": "tests/test_extending.py, in a copy of the repository",
    "detector": "tests/test_detector_guide.py, in a copy of the repository",
    "evaluation": "tests/test_evaluation_examples.py; the other blocks are templates",
    "kubernetes": "needs a cluster; tests/test_operating_examples.py renders the chart and checks the manifests and the commands in them",
    "lake": "sinks that do not end; tests/kafka/test_lake.py runs the commands",
    "mcp": "an installation and servers that do not end; tests/service/mcp/test_mcp.py runs both forms",
    "producing": "tests/kafka/test_guides.py",
    "sign-in": "needs a provider; tests/service/pages/test_oidc.py signs in at one",
    "simulation": "tests/simulation/test_simulation.py runs the histories",
    "tools": "a command with an example's project; tests/service/test_tool_findings.py has the rules and findings",
    "failures": "a command with an example's project; tests/service/test_failures.py has the groups",
    "review": "a command with an example's project; tests/test_docs_site.py checks its options",
    "tutorial": "tests/trial/demo/test_demo.py",
    "handbook": "a template of each command; tests/test_docs_site.py checks their options",
}
"""Documents whose blocks this module does not run, with the test that covers them or the reason."""


@dataclass(frozen=True)
class Shop:
    """A folder with the database of an agent that was connected and judged by the guide to HTTP."""

    folder: Path
    token: str
    operator: str
    answers: dict[str, Any]
    """The answers of the server about the project, by endpoint."""


def guide(name: str) -> Path:
    """Return the path of a document by its name."""
    (document,) = [path for path in DOCS.rglob(f"{name}.md") if not {"decisions", "reference"} & {*path.parts}]
    return document


def project_answers(url: str, operator: str) -> dict[str, Any]:
    """Return the answers of a server about the project, by endpoint."""
    headers = {"Authorization": f"Bearer {operator}"}
    with httpx2.Client(base_url=f"{url}/api/audit", headers=headers, timeout=300) as client:
        return {name: client.get(f"shop/{name}").raise_for_status().json() for name in PROJECT_ENDPOINTS}


def is_judged(url: str, operator: str) -> bool:
    """Return whether the project has scores and runs, and no pending exchange."""
    answers = project_answers(url, operator)
    has_scores = bool(answers["scores"]["scores"])
    has_runs = bool(answers["runs"]["runs"])
    return has_scores and has_runs and answers["summary"]["exchanges"]["pending"] == 0


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """Follow the guide to HTTP and the first example of the guide to SQL, with a real server and a simulated judge."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "policy.yaml").write_text(POLICY)
    add_connection, export_token, *calls = blocks_in(guide("http"))
    with shell(folder) as guide_shell:
        guide_shell.run("driftline simulate-judge")
        guide_shell.run(
            "export ANTHROPIC_BASE_URL=http://127.0.0.1:8788 ANTHROPIC_API_KEY=simulated DRIFTLINE_POLICY=policy.yaml"
        )
        operator = guide_shell.run("driftline operators add me").split()[0]
        token = guide_shell.run(add_connection).split()[0]
        guide_shell.run(export_token, {"dl_…": token})
        output = "".join(guide_shell.run(call) for call in calls)
        assert '"reason":"first_turns"' in output, output
        until(lambda: is_judged(guide_shell.url, operator), "the judge to answer")
        query = blocks_in(guide("sql"))[0]
        guide_shell.run(f"export DRIFTLINE_TOKEN={operator}")
        until(
            lambda: '"rows"' in guide_shell.run(query, {'"project": "ops"': '"project": "shop"'}),
            "the first snapshot, which the query requests",
        )
        answers_before_stop = project_answers(guide_shell.url, operator)
        guide_shell.stop()
    return Shop(folder, token, operator, answers_before_stop)


@pytest.fixture
def shop_shell(shop: Shop, tmp_path: Path) -> Iterator[Shell]:
    """Yield a shell in a copy of the shop's folder, without a server."""
    folder = tmp_path / "copy"
    shutil.copytree(shop.folder, folder, ignore=shutil.ignore_patterns("bin", "*.log"))
    with shell(folder, DRIFTLINE_POLICY="policy.yaml") as guide_shell:
        yield guide_shell


def start_judge(guide_shell: Shell) -> None:
    """Start a simulated judge, and point the shell to it."""
    guide_shell.run("driftline simulate-judge\nexport ANTHROPIC_BASE_URL=http://127.0.0.1:8788 ANTHROPIC_API_KEY=simulated")


def test_the_first_answer_matches_the_documents(tmp_path: Path) -> None:
    """New users compare the first answer of their server with the one in the documents."""
    blocks = [block for block in blocks_in(README) if "driftline" in block or "curl" in block]
    start_judge_block, start_server, send_exchange, read_anomalies = blocks
    without_activation = {". .venv/bin/activate\n": ""}
    with shell(tmp_path) as guide_shell:
        guide_shell.run(start_judge_block, without_activation)
        guide_shell.run(
            start_server,
            without_activation | {"ANTHROPIC_BASE_URL": "export ANTHROPIC_BASE_URL", " driftline serve": "\ndriftline serve"},
        )
        answer = guide_shell.run(
            send_exchange, without_activation | {"TOKEN=": "export TOKEN=", "OPERATOR=": "export OPERATOR="}
        )
        until(lambda: '"judgeModel":"' in guide_shell.run(read_anomalies), "the judge to complete the score")
        guide_shell.stop()
    for document in (README, DOCS / "handbook.md"):
        ((_, printed_answer),) = re.findall(r'(```json\n|`)(\{"exchangeId".*?\})\n?`', document.read_text("utf-8"))
        assert is_shown(f"{GAP}{printed_answer}{GAP}", answer)


def test_the_guide_to_http_ends_with_a_scored_run(shop: Shop) -> None:
    """Connecting an agent is the first thing that users do with a server."""
    (run,) = shop.answers["runs"]["runs"]
    (score,) = shop.answers["scores"]["scores"]

    assert run["sessionId"] == score["sessionId"] == "s-1"
    assert score["tier2SemanticScore"] is not None


@pytest.mark.parametrize("name", ["methodology", "tune", "sampling-and-cost", "replay", "shell"])
def test_commands_of_guides_without_a_server_succeed(name: str, shop_shell: Shell) -> None:
    """The blocks of a guide build on each other, for example on a replay that an earlier block made."""
    for file, content in files_in(guide(name).read_text("utf-8")).items():
        (shop_shell.folder / file).write_text(content, "utf-8")
    (shop_shell.folder / "strict.yaml").write_text(POLICY + "defaults: {sampling: {routineInterval: 2}}\n")
    start_judge(shop_shell)

    for block in blocks_in(guide(name)):
        shop_shell.run(block)


def test_the_numbers_of_the_guide_to_sampling_are_computed() -> None:
    """Prices, prompts and defaults change; a guide whose numbers are nobody's says something else a year later."""
    text = " ".join(guide("sampling-and-cost").read_text("utf-8").split())
    policy = Policy()
    settings = policy.defaults.sampling
    exchanges = demo_exchanges()
    bulk = estimate_bulk(iter(exchanges), policy)
    call = bulk.expected_usd / bulk.calls
    price, cheap = (policy.resolve_judge(model).price for model in ("claude-haiku-4-5", "claude-haiku-5-5"))
    assert price is not None
    assert cheap is not None
    assert (price.input, price.output) == pytest.approx((10 * cheap.input, 10 * cheap.output)), "a tenth of that"
    assert price.batch_input == price.input / 2, "half the price"
    question = max(
        (ExchangeQuestions(one, policy.for_project("demo")).tier2() for one in exchanges), key=lambda one: one.texts_size
    )
    tokens = question.texts_size // 4  # near the end of a cap the API counts them
    left_over = usd_of(price.max_prompt_cost(PromptBound(tokens, written=tokens), question.min_tokens))
    ends = settings.always_score_first + settings.always_score_last
    weights = sorted({ends + settings.routine_interval * sampled for sampled in (4, 5)})
    for number in (
        f"Below {math.ceil(100 * 10 * call) / 100:g} USD (`claude-haiku-4-5`;",
        f"a hundred calls or more: {math.ceil(10 * 100 * call) / 10:g} USD with `claude-haiku-4-5`",
        f"Up to one worst case of a call ({math.ceil(100 * left_over) / 100:g} USD)",
        f"of a session of 10 turns, {ends} are ends",
        f"21 turns with the default policy weigh {weights[0]}, {weights[0]} or {weights[1]}",
    ):
        assert number in text


def test_a_table_is_inspected_mapped_imported_and_judged(tmp_path: Path) -> None:
    """Users with a file and no server start this way."""
    text = guide("import-exchanges").read_text("utf-8")
    with shell(tmp_path) as guide_shell:
        for file, content in files_in(text).items():
            (tmp_path / file).write_text(content, "utf-8")
        start_judge(guide_shell)
        inspect, import_mapped, judge_imported = blocks_in(guide("import-exchanges"))
        assert "no column gives occurred_at" in guide_shell.run(inspect)
        assert "3 exchanges and 0 events imported" in guide_shell.run(import_mapped)
        assert "3 exchanges judged again" in guide_shell.run(judge_imported)


def test_the_gates_of_the_guide_to_ci_fail_and_pass(shop_shell: Shell) -> None:
    """A gate that never fails would give false confidence."""
    examples = ROOT / "examples" / "evaluation"
    shutil.copytree(examples / "cases", shop_shell.folder / "cases")
    shutil.copy(examples / "profile.yaml", shop_shell.folder / "nightly.yaml")
    start_judge(shop_shell)
    shop_shell.run(f"export BUILD=7 DRIFTLINE_PROJECT=shop\ndriftline import events {examples}/events.jsonl")
    evaluation_gate, drift_gate = blocks_in(guide("ci"))

    assert "evaluations made" in shop_shell.run(evaluation_gate, {'"build-$BUILD"': "refunds"}, codes={1})
    shop_shell.run(drift_gate)
    assert list((shop_shell.folder / "results").iterdir()) != []


def test_openclaw_imports_under_its_connection(tmp_path: Path) -> None:
    """Imported sessions and those that the plugin sends must belong to the same connection."""
    with shell(tmp_path) as guide_shell:
        shutil.copytree(ROOT / "examples" / "evaluation", tmp_path / ".openclaw")
        (block,) = blocks_in(guide("openclaw"))

        assert "12 exchanges" in guide_shell.run(block)
        assert "gateway" in guide_shell.run('driftline sql "SELECT DISTINCT connection, project FROM exchanges" --csv')


def test_a_trace_of_the_guide_becomes_an_exchange(tmp_path: Path) -> None:
    """Two environment variables are enough to see a session, without code of Driftline."""
    with shell(tmp_path) as guide_shell:
        add_connection, export_token, export_variables, send_trace, read_scores = blocks_in(guide("opentelemetry"))
        (tmp_path / "policy.yaml").write_text("version: 1\ndefaults: {traces: {settleSeconds: 0}}\n", encoding="utf-8")
        guide_shell.run("export DRIFTLINE_POLICY=policy.yaml")
        output = guide_shell.run(add_connection).split()
        token = next(word for word in output if word.startswith("dl_"))
        guide_shell.run(export_token, {"dl_…": token})
        guide_shell.run(export_variables)

        assert "{}" in guide_shell.run(send_trace)
        until(lambda: "checkout" in guide_shell.run(read_scores, codes={0, 1}), "the trace to be assembled and scored")
        guide_shell.stop()


def test_the_guide_to_opentelemetry_names_the_variables_of_the_page() -> None:
    """Most of the guide is generated from the file of the page, but these variables are in a hand-written sentence."""
    text = guide("opentelemetry").read_text(encoding="utf-8")
    variables = [line.removeprefix("export ") for line in stacks().content.splitlines()]
    assert [variable for variable in variables if f"`{variable}`" not in text] == []


def test_an_operator_of_the_guide_to_the_api_may_read(tmp_path: Path) -> None:
    """The operator must have the scope that the requests of the guide need."""
    with shell(tmp_path) as guide_shell:
        (block,) = blocks_in(guide("api"))
        guide_shell.run(block)

        assert "read" in guide_shell.run("driftline operators list")


def test_the_guides_grant_no_extra_scopes(tmp_path: Path) -> None:
    """A guide that grants more than it says would be a security hole in every deployment that follows it."""
    with shell(tmp_path) as guide_shell:
        for block in [*blocks_in(guide("administer")), *blocks_in(guide("grafana"))]:
            guide_shell.run(block)
        lines = guide_shell.run("driftline operators list --json").splitlines()
    operators = {operator["name"]: operator for operator in map(json.loads, lines)}

    assert "admin" in operators["me"]["scopes"]
    assert operators["me"]["project"] is None
    assert operators["ada"]["scopes"] == ["read"]
    assert operators["ada"]["project"] == "shop"
    assert operators["prometheus"]["scopes"] == ["read"]
    assert operators["prometheus"]["project"] is None
    assert operators["ada"]["tokens"][0]["expiresAt"] is not None
    assert operators["me"]["tokens"][0]["expiresAt"] is None


def test_anchors_of_the_guide_are_chosen_and_judged_again(shop_shell: Shell) -> None:
    """Without anchors, the next incident could not tell a change of the agent from a change of the judge."""
    choose_anchors, run_anchors = blocks_in(guide("anchors"))
    start_judge(shop_shell)
    choose_default, choose_more, choose_by_id = choose_anchors.strip().splitlines()

    assert "1 anchor chosen" in shop_shell.run(choose_default)
    assert "no exchange can become an anchor" in shop_shell.run(choose_more)
    shop_shell.run(choose_by_id, {"EXCHANGE EXCHANGE": "s-1:1"})
    assert "1 anchor judged again" in shop_shell.run("driftline anchors run --project shop")
    assert run_anchors.strip().startswith("driftline simulate-judge")


def test_the_requests_of_the_guides_for_readers_are_answered(shop_shell: Shell, shop: Shop) -> None:
    """Readers look up a session, list the inbox and decide on several incidents; unknown incidents are named in the answer."""
    shop_shell.run("driftline serve")
    shop_shell.run(f"export TOKEN={shop.operator} DRIFTLINE={shop_shell.url} SERVER={shop_shell.url}")
    (find_session,) = blocks_in(guide("find"))
    inbox, share_page = blocks_in(guide("on-call"))
    list_inbox, decide_on_many = inbox.split("\ncurl ")

    assert "s-1:1" in shop_shell.run(find_session, {"NAME": "shop", "sessions/ID": "sessions/s-1"})
    assert '"incidents":[]' in shop_shell.run(list_inbox)
    assert "the project has no incident with this id" in shop_shell.run(f"curl {decide_on_many}", {'"ops"': '"shop"'})
    add_link, list_links, revoke_link = share_page.strip().splitlines()
    shop_shell.run(add_link, {"ops/incidents/1a2b3c4d": "shop/sessions/s-1"})
    (link_id,) = re.findall(r"\b[0-9a-f]{12}\b", shop_shell.run(list_links))
    assert "revoked" in shop_shell.run(revoke_link, {"3f9a77c1b2d4": link_id})
    shop_shell.stop()


def test_the_channel_of_the_guide_receives_alerts(shop_shell: Shell) -> None:
    """A test alert arrives at once, even if quiet hours hold back other alerts."""
    send_test_and_serve, test_receiver, export_quiet_hours = blocks_in(guide("alerts"))
    file = re.search(r'title="receivers.yaml"\n(.+?)```', guide("alerts").read_text("utf-8"), re.DOTALL)
    assert file is not None
    (shop_shell.folder / "receivers.yaml").write_text(file[1], "utf-8")
    with receiving() as receiver:
        shop_shell.run(send_test_and_serve, {"https://hooks.slack.com/services/…": receiver.url})
        shop_shell.run(export_quiet_hours)
        shop_shell.run(test_receiver, {"TEAMS_URL=https://…": f"TEAMS_URL={receiver.url}"})

        assert [[*post.document][:1] for post in receiver.posts] == [["text"], ["type"]]
    shop_shell.stop()
    shop_shell.run("driftline alerts list")


def test_a_backup_of_a_running_server_has_all_records(shop_shell: Shell, shop: Shop) -> None:
    """A backup is often restored for the first time after the original is lost."""
    if shutil.which("sqlite3") is None:
        skip_or_fail("the guide copies the tokens with sqlite3: install it")
    back_up, back_up_paused, back_up_tokens, restore, try_backup = blocks_in(guide("back-up"))
    shop_shell.run("driftline serve")
    (server,) = shop_shell.processes
    shop_shell.run(blocks_in(guide("http"))[2].replace("$TOKEN", shop.token).replace("s-1", "s-2"))
    until(
        lambda: len(project_answers(shop_shell.url, shop.operator)["scores"]["scores"]) == 2, "the exchange to have its score"
    )
    before = project_answers(shop_shell.url, shop.operator)

    shop_shell.run(back_up)
    shop_shell.run(back_up_paused, {"PID": str(server.pid)})
    after_backup = project_answers(shop_shell.url, shop.operator)
    shop_shell.run(back_up_tokens)
    shop_shell.run(try_backup)
    shop_shell.stop()
    for path in shop_shell.folder.glob("driftline.*"):
        path.unlink()
    shop_shell.run(restore)
    shop_shell.run("driftline serve")

    assert after_backup == before
    assert project_answers(shop_shell.url, shop.operator) == before
    shop_shell.stop()
    (backup,) = shop_shell.folder.glob("backups/*")
    for path in shop_shell.folder.glob("driftline.*"):
        path.unlink()
    shop_shell.run(f"cp {backup}/driftline.* .")
    shop_shell.run("driftline serve")

    assert project_answers(shop_shell.url, shop.operator) == before
    shop_shell.stop()


def test_an_export_fits_the_published_key_and_head(shop_shell: Shell) -> None:
    """The guide reads both from the commands that print them."""
    (verification,) = blocks_in(guide("verify"))

    assert "everything fits" in shop_shell.run(verification)


def test_a_database_of_the_first_version_is_upgraded(shop_shell: Shell, shop: Shop) -> None:
    """An upgrade keeps all records, and gives new fields their defaults."""
    downgrade(shop_shell.folder / "driftline.duckdb")
    start_judge(shop_shell)
    shop_shell.run("driftline doctor")
    for block in blocks_in(guide("upgrade")):
        shop_shell.run(block)
    shop_shell.run("driftline serve")
    answers = project_answers(shop_shell.url, shop.operator)

    exchange_ids = [score["exchangeId"] for score in answers["scores"]["scores"]]
    assert exchange_ids == [score["exchangeId"] for score in shop.answers["scores"]["scores"]]
    assert len(answers["runs"]["runs"]) == len(shop.answers["runs"]["runs"])
    shop_shell.stop()


def downgrade(database: Path) -> None:
    """Drop the columns and views that the first published version of the database did not have."""
    with duckdb.connect(str(database)) as connection:
        views = connection.execute("SELECT schema_name, view_name FROM duckdb_views() WHERE NOT internal").fetchall()
        for schema, view in views:
            connection.execute(f'DROP VIEW "{schema}"."{view}"')
        for record in current_schemas().values():
            first_fields = {field["name"] for field in published_schemas()[record.name][0].fields}
            for field in record.fields:
                if field["name"] not in first_fields:
                    connection.execute(f'ALTER TABLE log."{record.table}" DROP COLUMN "{field["name"]}"')


def test_every_document_with_commands_is_listed() -> None:
    """A guide that no test runs becomes wrong after the next change."""
    with_commands = {path.stem for path in DOCS.rglob("*.md") if path.parent.name != "reference" and blocks_in(path)}

    assert with_commands - TESTED_HERE - set(NOT_TESTED_HERE) == set()
    assert TESTED_HERE - with_commands == set()
