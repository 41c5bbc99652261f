"""The examples for operators: manifests of Kubernetes, and the configuration of Prometheus and Grafana."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from support.go_programs import helm
from support.processes import skip_or_fail
from test_deploying import options_of

from audit.policy import Policy, load_policy
from service.setup.settings import PREFIX, Settings
from service.web.context import Metrics
from streams.engine.record_intake import EngineState

EXAMPLES = Path(__file__).parents[1] / "examples"
CHART = EXAMPLES / "helm"
MONITORING = EXAMPLES / "monitoring"
KUBERNETES = "1.34"
WITH_KAFKA = [
    *("--set-string", r"kafka.brokers=kafka-0:9092\,kafka-1:9092"),
    *("--set", "env.DRIFTLINE_KAFKA_SECURITY=SSL,storage.className=fast,ingress.className=nginx,ingress.annotations.a=b"),
]

Manifests = list[dict[str, Any]]


@pytest.fixture(scope="module", params=[[], WITH_KAFKA], ids=["server", "kafka"])
def manifests(request: pytest.FixtureRequest) -> Manifests:
    """The manifests that the chart gives."""
    return render(*request.param)


def render(*options: str) -> Manifests:
    """Return what Helm renders from the chart with these options."""
    done = subprocess.run(
        [helm(), "template", "driftline", CHART, "--namespace", "driftline", "--kube-version", KUBERNETES, *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def containers_of(manifests: Manifests) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return each container after the specification of its pod."""
    pods = [one["spec"]["template"]["spec"] for one in manifests if "template" in one.get("spec", {})]
    return [(pod, container) for pod in pods for container in pod["containers"]]


@pytest.mark.slow
def test_manifests_are_ones_that_kubernetes_takes(manifests: Manifests) -> None:
    """A field with a mistyped name is refused by the cluster, or ignored."""
    assert {one["kind"] for one in manifests} >= {"StatefulSet", "Service", "Ingress", "NetworkPolicy", "ConfigMap"}
    for manifest in manifests:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


@pytest.mark.slow
def test_a_container_runs_a_command_that_exists_and_may_do_little(manifests: Manifests) -> None:
    """A pod that cannot read its command line restarts for ever; one that is root gives a fault more to break."""
    for pod, container in containers_of(manifests):
        words = container["args"]
        wanted = {word for word in words if word.startswith("--")}
        mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
        named = {variable["name"] for variable in container.get("env", None) or ()}

        assert wanted <= options_of(words), words
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
        assert mounted <= {volume["name"] for volume in pod.get("volumes", ())} | {"data"}
        assert named <= {f"{PREFIX}{field.upper()}" for field in Settings.__struct_fields__}


@pytest.mark.slow
def test_the_policy_of_the_chart_is_one_that_the_server_takes(manifests: Manifests, tmp_path: Path) -> None:
    """A server that cannot read its policy never becomes ready."""
    [policy] = [one["data"]["policy.yaml"] for one in manifests if one["kind"] == "ConfigMap"]
    (tmp_path / "policy.yaml").write_text(policy, "utf-8")

    assert load_policy(tmp_path / "policy.yaml") == Policy()


@pytest.mark.slow
@pytest.mark.parametrize("option", ["kafka.broker=kafka:9092", "host=https://audit.example/", "workers.replicas=-1"])
def test_a_value_that_the_chart_does_not_have_is_refused(option: str) -> None:
    """A mistyped name would be ignored, and the cluster would run without it."""
    with pytest.raises(AssertionError, match=option.partition("=")[0].split(".")[0]):
        render("--set", option)


@pytest.mark.slow
def test_one_process_has_the_database(manifests: Manifests) -> None:
    """A second replica would be a second database, and half of the records in each."""
    [server] = [one for one in manifests if one["kind"] == "StatefulSet"]

    assert server["spec"]["replicas"] == 1
    assert [one["spec"]["accessModes"] for one in server["spec"]["volumeClaimTemplates"]] == [["ReadWriteOncePod"]]


@pytest.mark.slow
def test_what_is_stopped_has_the_time_that_a_judge_call_takes(manifests: Manifests) -> None:
    """A call that is cut off is paid for twice."""
    longest = Settings().judge_deadline

    pods = [pod for pod, container in containers_of(manifests) if container["name"] != "topics"]
    assert pods
    assert [one for one in pods if one["terminationGracePeriodSeconds"] <= longest] == []


def _metrics() -> set[str]:
    """The names that `/metrics` answers with, the series of histograms included."""
    metrics = Metrics()
    metrics.answered("GET", "/", 200, 0.1)
    metrics.ingested(["scored"])
    metrics.events({"accepted": 1})
    metrics.spans({"accepted": 1})
    state = EngineState(
        ready=True, not_ready_reason="", queues={"sink": 1}, judge_calls={"answered": 1}, spent_usd=0.5, erased={}
    )
    return set(re.findall(r"^(driftline_\w+)", metrics.text(state).decode(), re.MULTILINE))


@pytest.mark.parametrize("file", ["alerts.yml", "grafana-dashboard.json"])
def test_a_rule_or_panel_asks_for_metrics_that_exist(file: str) -> None:
    """A rule on a metric that no server has never fires."""
    asked = set(re.findall(r"\bdriftline_\w+", (MONITORING / file).read_text("utf-8")))

    assert asked
    assert asked - _metrics() == set()


def test_panels_of_the_dashboard_are_apart_and_each_asks_something() -> None:
    """Panels that lie upon each other are moved by Grafana, differently at each import."""
    panels = json.loads((MONITORING / "grafana-dashboard.json").read_text("utf-8"))["panels"]
    places = [(one["gridPos"]["x"], one["gridPos"]["y"]) for one in panels]

    assert len({*places}) == len(places) == len({one["id"] for one in panels})
    assert all(target["expr"] for one in panels for target in one["targets"])


@pytest.mark.slow
def test_prometheus_takes_the_alerts_and_fires_them(tmp_path: Path) -> None:
    """An expression that parses may still never be true: Prometheus' own tool plays series and says what fires."""
    tool = shutil.which("promtool")
    if tool is None:
        skip_or_fail("promtool is not on the PATH: install Prometheus to run this test")
    played = {
        "rule_files": [f"{MONITORING / 'alerts.yml'}"],
        "evaluation_interval": "1m",
        "tests": [
            _fires("DriftlineDown", {"up": "0+0x60"}, "5m", job="driftline"),
            _fires("DriftlineNotReady", {"driftline_ready": "0+0x60"}, "15m"),
            _fires("DriftlineQueueGrows", {"driftline_queue_size": "2000+100x120"}, "2h", queue="sink"),
            _fires("DriftlineJudgeCost", {"driftline_judge_cost_usd_total": "0+0.1x1500"}, "24h"),
        ],
    }
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(played), encoding="utf-8")

    done = subprocess.run([f"{tool}", "test", "rules", "tests.yml"], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def _fires(alert: str, series: dict[str, str], at: str, **labels: str) -> dict[str, Any]:
    """A test of promtool: with these series the alert fires at this time."""
    given = ", ".join(f'{name}="{value}"' for name, value in {"instance": "a", **labels}.items())
    return {
        "interval": "1m",
        "input_series": [{"series": f"{name}{{{given}}}", "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})',
                "eval_time": at,
                "exp_samples": [{"labels": "{}", "value": 1}],
            }
        ],
    }
