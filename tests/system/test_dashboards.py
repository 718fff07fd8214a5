"""deploy/monitoring: dashboards and rules read metrics that a real gateway and engine have, the SQL of dashboards runs
under the role of grafana_role.sql, and the configurations of Prometheus and Alertmanager are valid.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
import yaml

from migrations.upgrade import upgrade
from support.gateway.monitored_stack import MonitoredStack, Samples, samples
from support.gateway.quiet_day import RULES
from support.paths import REPO
from support.promtool import promtool, running_prometheus
from support.services import fresh_postgres, missing_service
from support.waiting import eventually

FOLDER = REPO / "deploy" / "monitoring"
DASHBOARDS = sorted((FOLDER / "dashboards").glob("*.json"))
TITLES = {"fleet", "tiers and their targets", "tenants", "money", "engine memory", "batches"}
# Of Prometheus itself; and labels that Prometheus and prometheus.yml add to every series.
OWN_METRICS, OWN_LABELS = {"up"}, {"instance", "job", "engine"}
WORDS = {"and", "or", "unless", "by", "without", "bool", "offset", "on", "ignoring", "group_left", "group_right", "le"}
GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)\s*(=~|!=|!~|=)\s*"([^"]*)"')


def panels(dashboard: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(dashboard.read_text())["panels"]
    return found


def queries(key: str) -> list[str]:
    """Of all dashboards: `key` is "expr" (PromQL) or "rawSql"."""
    every = [target for file in DASHBOARDS for panel in panels(file) for target in panel["targets"]]
    return [target[key] for target in every if key in target]


def expressions() -> list[str]:
    return [query.replace("$__rate_interval", "2m") for query in queries("expr")]


def rule_groups() -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"]
    return groups


def metric_names(expression: str) -> set[str]:
    """The words of a PromQL expression that are no function, keyword, label, number or text. The grammar is promtool's
    matter."""
    text = re.sub(r'"[^"]*"|\[[^\]]*\]', "", GROUPING.sub("", expression))
    text = re.sub(r"\{[^}]*\}", "", text)
    text = re.sub(r"[a-zA-Z_]\w*\s*(?=\()", "", text)  # functions and aggregations
    return {word for word in re.findall(r"(?<![\w.])[a-zA-Z_:][\w:]*", text) if word not in WORDS}


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[MonitoredStack]:
    """A stack that has every part, after a request and a refusal."""
    with fresh_postgres() as url:
        upgrade(url)
        stack = MonitoredStack(tmp_path_factory.mktemp("monitored") / "stack", url, model_dir)
        try:
            stack.start()
            assert stack.chat(model="acme-style").status_code == 200
            assert stack.chat(model="nowhere").status_code == 404
            yield stack
        finally:
            stack.stop()


@pytest.fixture(scope="module")
def real_page(monitored: MonitoredStack) -> Samples:
    """What Prometheus reads of it."""
    return samples(monitored.page())


def test_every_dashboard_is_whole() -> None:
    read = [json.loads(file.read_text()) for file in DASHBOARDS]
    assert {board["title"].removeprefix("Laneway: ") for board in read} == TITLES
    assert [board["uid"] for board in read] == [file.stem for file in DASHBOARDS]
    for board in read:
        variables = {f"${{{variable['name']}}}" for variable in board["templating"]["list"]}
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
        assert {panel["datasource"]["uid"] for panel in board["panels"]} == variables, board["title"]
        cells = [
            (panel["gridPos"]["x"] + dx, panel["gridPos"]["y"] + dy)
            for panel in board["panels"]
            for dx in range(panel["gridPos"]["w"])
            for dy in range(panel["gridPos"]["h"])
        ]
        assert len(set(cells)) == len(cells), f"{board['title']}: panels overlap"
        assert max(x for x, _ in cells) < 24


def test_every_expression_of_a_dashboard_parses(tmp_path: Path) -> None:
    """promtool parses rules, so each expression becomes one."""
    rules = [{"record": f"dashboards:expression_{n}", "expr": text} for n, text in enumerate(expressions())]
    assert len(rules) > 50
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboards", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", file)


def test_the_words_of_an_expression() -> None:
    text = 'sum by (tier, le) (rate(vllm:a_bucket{x="y z"}[2m])) / 1e3 > 14.4 * (b or vector(0)) unless tier:c:d'
    assert metric_names(text) == {"vllm:a_bucket", "b", "tier:c:d"}


def test_every_metric_is_on_a_real_page(real_page: Samples) -> None:
    rules = [rule for group in rule_groups() for rule in group["rules"]]
    recorded = {rule["record"] for rule in rules if "record" in rule}
    for text in [*expressions(), *(rule["expr"] for rule in rules)]:
        names = metric_names(text)
        assert names, text
        assert names <= real_page.keys() | recorded | OWN_METRICS, text


def test_every_selector_matches_a_real_series(real_page: Samples) -> None:
    """Of a metric that has no series yet, nothing can be said."""
    for text in [*expressions(), *(rule["expr"] for group in rule_groups() for rule in group["rules"])]:
        for name, matchers in SELECTOR.findall(text):
            series = [dict(labels) for labels in real_page.get(name, {})]
            for label, operator, value in MATCHER.findall(matchers):
                assert not series or label in OWN_LABELS or label in series[0], f"{name} has no label {label}"
                if operator == "=" and label in ("part", "state", "target"):
                    assert any(labels[label] == value for labels in series), f"{name}: {label} is never {value}"


def test_prometheus_answers_every_expression(monitored: MonitoredStack, real_page: Samples, tmp_path: Path) -> None:
    """The server itself, with our configuration, reads a real gateway: each dashboard has data, and no alert fires."""
    text = (FOLDER / "prometheus.yml").read_text().replace("gateway:9464", f"127.0.0.1:{monitored.metrics_port}")
    text = text.replace("rules.yml", str(RULES)).replace("interval: 30s", "interval: 1s")
    (tmp_path / "prometheus.yml").write_text(text)
    with running_prometheus(tmp_path, tmp_path / "prometheus.yml") as url, httpx.Client(timeout=30) as client:

        def answer(expression: str) -> list[dict[str, Any]]:
            found = client.get(f"{url}/api/v1/query", params={"query": expression}).json()
            assert found["status"] == "success", found
            result: list[dict[str, Any]] = found["data"]["result"]
            return result

        eventually(lambda: bool(answer("tier:first_tokens_missed:ratio_rate5m")))
        for expression in expressions():
            has_no_series = any(name in real_page and not real_page[name] for name in metric_names(expression))
            # `code=~`: refusals for limits, of which this stack had none.
            assert answer(expression) or has_no_series or "code=~" in expression, expression
        [engine] = {found["metric"]["engine"] for found in answer("vllm:num_requests_running")}
        assert engine == f"127.0.0.1:{monitored.metrics_port}", "a single engine has the name of its host"
        assert not answer('ALERTS{alertstate="firing"}')


def test_every_sql_runs_as_the_role_of_grafana(postgres_url: str) -> None:
    """The role reads what the dashboards ask for, and no key, secret, request or answer."""
    owner = sa.create_engine(postgres_url, isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool)
    role = f"grafana_{sa.make_url(postgres_url).database}"
    statements = (FOLDER / "grafana_role.sql").read_text().replace("laneway_grafana", role)
    program = shutil.which("psql")
    if program is None:
        missing_service("psql", "it is not installed: apt-get install postgresql-client")
    url = sa.make_url(postgres_url).set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        for _ in range(2):
            argv = [program, url, "--quiet", "--set", "ON_ERROR_STOP=1", "--set", "password=it's one", "--file", "-"]
            done = subprocess.run(argv, input=statements, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        with owner.connect() as connection:
            connection.execute(sa.text(f'SET ROLE "{role}"'))
            for query in queries("rawSql"):
                text = query.replace("$__unixEpochFrom()", "0").replace("$__unixEpochTo()", "2000000000")
                columns = list(connection.exec_driver_sql(text.replace("%", "%%")).keys())
                assert columns == ["time", "metric", "value"] or "time" not in columns, text
            with pytest.raises(sa.exc.ProgrammingError, match="permission denied"):
                connection.execute(sa.text("SELECT metadata FROM batches"))
            for table in ("keys", "webhooks", "holds", "usage", "sessions", "responses"):
                if connection.execute(sa.text(f"SELECT to_regclass('{table}')")).scalar() is not None:
                    with pytest.raises(sa.exc.ProgrammingError, match="permission denied"):
                        connection.execute(sa.text(f"SELECT 1 FROM {table}"))
    finally:
        with owner.connect() as connection:
            connection.execute(sa.text(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"'))
        owner.dispose()


def test_the_configurations_are_valid() -> None:
    promtool("check", "config", FOLDER / "prometheus.yml")
    program = shutil.which("amtool")
    if program is None:
        missing_service("amtool", "it is not installed: apt-get install prometheus-alertmanager")
    file = FOLDER / "alertmanager.yml"
    done = subprocess.run([program, "check-config", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for severity, receivers in (("page", "pagerduty,slack"), ("ticket", "slack")):
        argv = [program, "config", "routes", "test", f"--config.file={file}", f"severity={severity}"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.stdout.strip() == receivers


def test_the_trial_gives_grafana_its_data_sources() -> None:
    """Names and paths in the provisioning are those of compose.yaml."""
    services = yaml.safe_load((REPO / "deploy/containers/compose.yaml").read_text())["services"]
    sources = yaml.safe_load((FOLDER / "provisioning/datasources/laneway.yml").read_text())["datasources"]
    assert {source["url"].removeprefix("http://").split(":")[0] for source in sources} <= services.keys()
    [password] = re.findall(r"\$__file\{(.*)\}", sources[1]["secureJsonData"]["password"])
    mounts = [volume.split(":")[1] for volume in services["grafana"]["volumes"]]
    assert any(password.startswith(mount) for mount in mounts)
    provider = yaml.safe_load((FOLDER / "provisioning/dashboards/laneway.yml").read_text())["providers"][0]
    assert provider["options"]["path"] == "/etc/laneway/monitoring/dashboards"
    assert "/etc/laneway/monitoring" in mounts
    targets = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"][0]["static_configs"][0][
        "targets"
    ]
    port = services["gateway"]["environment"]["LANEWAY_METRICS_ADDRESS"].rpartition(":")[2]
    assert targets == [f"gateway:{port}"]
