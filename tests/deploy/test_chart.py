"""deploy/kubernetes: the chart over a matrix of values, its objects' schemas and policy, and the base made from it."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
import yaml

from gateway.cli import main
from gateway.commands.drain_and_upgrade import MARGIN_S
from gateway.config.file import parse_gateway_config
from support.deploy.helm import BASE_FILE, CHART, RELEASE, Helm, HelmRefused, base_text, running_helm
from support.deploy.tools import find_tool
from support.documents import DOCS, blocks
from support.paths import REPO
from support.stack import Stack

Object = dict[str, Any]
CLAIM = {"persistentVolumeClaim": {"claimName": "shared"}}
MODEL = {"name": "tiny", "path": "/models/tiny", "fallbacks": ["other"], "pinned": True}
MATRIX: dict[str, dict[str, Any]] = {
    "defaults": {},
    "everything": {
        "redis": True,
        "images": {"gateway": {"digest": "sha256:" + "a" * 64}, "pullSecrets": ["registry"]},
        "volumes": {"adapters": CLAIM},
        "gateway": {
            "persistence": {"enabled": True, "storageClass": "fast"},
            "env": [{"name": "AWS_REGION", "value": "eu-1"}],
            "podAnnotations": {"team": "models"},
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "service": {"type": "LoadBalancer", "annotations": {"internal": "true"}},
        },
        "engine": {
            "replicas": 3,
            "persistence": {"enabled": True},
            "runtimeClassName": "nvidia",
            "env": [{"name": "AWS_REGION", "value": "eu-1"}],
            "nodeSelector": {"gpu": "h200"},
        },
        "networkPolicy": {
            "clients": [{"namespaceSelector": {"matchLabels": {"proxy": "true"}}}],
            "engineEgress": [{"ports": [{"port": 443}]}],
        },
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "keda": {"enabled": True, "queue_s": 0.5},
    },
    "without_gpus": {
        "engine": {"gpus": {"count": 0}},
        "config": {
            "gateway": {"linger_s": 0, "shutdown_grace_s": 0.5, "cors_origins": ["https://a.example"]},
            "engine": {"device": "cpu", "arena_bytes": 2**40, "quality": {"top1_min": 0.75}},
            "fleet": {"object_store": "s3://bucket/<prefix>", "hedge_tiers": []},
            "models": [MODEL, {"name": "other", "path": "/models/other"}],
            "aliases": [{"name": "chat", "models": [{"model": "tiny", "weight": 95}, {"model": "other", "weight": 5}]}],
        },
    },
    "bare": {"networkPolicy": {"enabled": False}, "podDisruptionBudgets": False, "migrations": {"enabled": False}},
}
KUBERNETES = ("1.29", "1.37")  # the chart's oldest, and the newest of which kubernetes-validate has the schemas
CUSTOM = {"PodMonitor", "ScaledObject"}  # kinds of others, whose schemas it has not


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Helm]:
    with running_helm(tmp_path_factory.mktemp("helm")) as running:
        yield running


@pytest.fixture(params=MATRIX)
def objects(request: pytest.FixtureRequest, helm: Helm) -> list[Object]:
    return helm.render(MATRIX[request.param], namespace="models")


@pytest.fixture
def everything(helm: Helm) -> list[Object]:
    return helm.render(MATRIX["everything"])


def find(objects: list[Object], kind: str, name: str = "") -> Object:
    [found] = [each for each in objects if each["kind"] == kind and each["metadata"]["name"] == RELEASE + name]
    return found


def workloads(objects: list[Object]) -> dict[str, Object]:
    """The pod templates, by component."""
    templates = [each["spec"]["template"] for each in objects if "template" in each.get("spec", {})]
    return {template["metadata"]["labels"]["app.kubernetes.io/component"]: template for template in templates}


def pods(objects: list[Object]) -> dict[str, Object]:
    return {component: template["spec"] for component, template in workloads(objects).items()}


def laneway_toml(objects: list[Object]) -> str:
    text: str = find(objects, "ConfigMap")["data"]["laneway.toml"]
    return text


def mentioned(value: Any, key: str) -> set[str]:
    """Every text below a key of this name, at any depth."""
    if isinstance(value, dict):
        own = {found for name, found in value.items() if name == key and isinstance(found, str)}
        return own.union(*(mentioned(each, key) for each in value.values()))
    return set().union(*(mentioned(each, key) for each in value)) if isinstance(value, list) else set()


def test_lint(helm: Helm) -> None:
    said = json.loads(helm.lint())
    assert said["passed"]
    assert [line["message"] for line in said["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("case", MATRIX)
def test_schemas_of_kubernetes(helm: Helm, case: str, version: str, tmp_path: Path) -> None:
    rendered = helm.render(MATRIX[case])
    own = [each for each in rendered if each["kind"] not in CUSTOM]
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(own))
    command = [find_tool("kubernetes-validate"), "--strict", "-k", version, str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert (said.count(" passed for resource "), said.count("WARN")) == (len(own), 0), said


def test_pod_security(objects: list[Object]) -> None:
    """The profile `restricted` of Kubernetes' Pod Security Standards, and what policy scanners ask beyond it. Of
    checkov's rules four are not kept: digests and pull policy are values, CPU limits would slow tokens, and gateways
    have an account's token because they follow the engines."""
    for component, pod in pods(objects).items():
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] >= 10_000
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert pod["automountServiceAccountToken"] is (component == "gateway")
        assert pod["enableServiceLinks"] is False, "LANEWAY_PORT of the Service would be read as the gateway's port"
        kinds = {key for volume in pod["volumes"] for key in volume if key != "name"}
        assert kinds <= {"configMap", "emptyDir", "persistentVolumeClaim", "projected", "secret"}
        for container in pod["containers"]:
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["readOnlyRootFilesystem"] is True
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert "privileged" not in own
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])
            assert "memory" in container["resources"]["limits"]
            if component != "migrate":
                assert {"startupProbe", "livenessProbe", "readinessProbe"} <= set(container)
            writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
            assert {"/tmp", "/var/lib/laneway"} <= set(writable)


def test_images_have_the_pods_user(helm: Helm) -> None:
    user = pods(helm.render())["gateway"]["securityContext"]["runAsUser"]
    for image in ("gateway", "engine"):
        text = (REPO / "deploy" / "containers" / f"{image}.Containerfile").read_text()
        assert set(re.findall(r"LANEWAY_UID=(\d+)", text)) == {str(user)}
        assert "/usr/share/laneway/" in text, "the engine's probe is a program of the image"


def test_the_configuration_is_valid(objects: list[Object]) -> None:
    config = parse_gateway_config(laneway_toml(objects).encode(), Path("/etc/laneway"), "laneway.toml", {})
    assert config.fleet.driver == "kubernetes"
    service = find(objects, "Service", "-engines")
    assert (config.fleet.kubernetes.service, service["spec"]["clusterIP"]) == (service["metadata"]["name"], "None")
    [port] = service["spec"]["ports"]
    assert config.fleet.kubernetes.port == port["name"]
    assert config.engine.listen == f"0.0.0.0:{port['port']}"
    for component, own in (("gateway", config.gateway), ("engine", config.engine)):
        [container] = pods(objects)[component]["containers"]
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        expected = {"http": 8080, "metrics": 9464} if component == "gateway" else {"frames": port["port"]}
        assert ports == expected, own
        mounted = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert all(model.path.startswith("/models/") for model in config.models)
        assert {"/models", "/etc/laneway", config.gateway.data_dir} <= set(mounted)
    paths = mentioned(pods(objects)["gateway"]["volumes"], "path")
    secrets = (config.gateway.secret_file, config.fleet.certificate_file, config.fleet.key_file)
    assert {str(Path(file).relative_to("/etc/laneway")) for file in secrets} <= paths


def test_values_reach_laneway_toml_as_they_are(helm: Helm) -> None:
    given = MATRIX["without_gpus"]["config"]
    written = tomllib.loads(laneway_toml(helm.render({"config": given})))
    for section in ("models", "aliases"):
        assert written[section] == given[section]
    for section in ("gateway", "engine", "fleet"):
        assert given[section].items() <= written[section].items()
    assert isinstance(written["engine"]["arena_bytes"], int)


def test_a_gateway_has_the_time_that_its_drain_takes(objects: list[Object]) -> None:
    config = parse_gateway_config(laneway_toml(objects).encode(), Path("/etc/laneway"), "laneway.toml", {})
    pod = pods(objects)["gateway"]
    [container] = pod["containers"]
    waits = config.gateway.linger_s + config.gateway.shutdown_grace_s + MARGIN_S
    assert waits < pod["terminationGracePeriodSeconds"] <= waits + 15
    assert container["lifecycle"]["preStop"]["exec"]["command"] == ["laneway", "drain", "gateway"]
    probe = container["readinessProbe"]
    if config.gateway.linger_s:
        assert probe["periodSeconds"] * probe["failureThreshold"] < config.gateway.linger_s


def test_every_command_exists(everything: list[Object]) -> None:
    hook = pods(everything)["gateway"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    commands = [container["args"] for pod in pods(everything).values() for container in pod["containers"]]
    assert len(commands) == 3
    for words in [*commands, hook[1:]]:
        found: click.Command = main
        for word in words:
            if isinstance(found, click.Group):
                found = found.commands[word]
        assert not isinstance(found, click.Group), words


def test_a_gateway_answers_the_probes_and_has_the_metric(stack: Stack, everything: list[Object]) -> None:
    [container] = pods(everything)["gateway"]["containers"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert httpx.get(stack.url + container[probe]["httpGet"]["path"], timeout=30).status_code == 200
    [query] = mentioned(find(everything, "ScaledObject", "-engines"), "query")
    [metric] = re.findall(r"vllm:\w+", query)
    stack.chat()
    assert f"\n{metric}{{" in stack.metrics()


def test_secrets(helm: Helm, objects: list[Object]) -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())["secrets"]
    assert not [each for each in objects if each["kind"] == "Secret"]
    for component, pod in pods(objects).items():
        assert "secretKeyRef" not in json.dumps(pod), "secrets are files"
        projected = [source["secret"]["name"] for source in sources(pod) if "secret" in source]
        plain = [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume]
        expected = {
            "gateway": [values["main"], values["gatewayTls"]],
            "engine": [values["engineTls"]],  # no engine sees the database or the server secret
            "migrate": [values["main"]],
        }
        assert projected + plain == expected[component]


def sources(pod: Object) -> list[Object]:
    return [source for volume in pod["volumes"] for source in volume.get("projected", {}).get("sources", ())]


def test_migrations_run_before_the_charts_objects_exist(helm: Helm) -> None:
    rendered = helm.render()
    job = find(rendered, "Job", "-migrate-2026-1")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    pod = pods(rendered)["migrate"]
    assert "serviceAccountName" not in pod
    assert "configMap" not in json.dumps(pod["volumes"])


def test_the_gateways_account_may_follow_endpoints_alone(objects: list[Object]) -> None:
    [role] = [each for each in objects if each["kind"] in ("Role", "ClusterRole")]
    rule = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
    assert role["rules"] == [rule]
    [subject] = find(objects, "RoleBinding", "-gateway")["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "laneway-gateway", "namespace": "models"}
    assert pods(objects)["gateway"]["serviceAccountName"] == subject["name"]


def test_network_policies(everything: list[Object]) -> None:
    labels = {component: template["metadata"]["labels"] for component, template in workloads(everything).items()}
    policies = {
        component: policy["spec"]
        for policy in everything
        if policy["kind"] == "NetworkPolicy"
        for component, own in labels.items()
        if policy["spec"]["podSelector"]["matchLabels"].items() <= own.items()
    }
    assert set(policies) == set(labels), "each pod has one"
    assert all(policy["policyTypes"] == ["Ingress", "Egress"] for policy in policies.values())
    gateways = [{"podSelector": {"matchLabels": labels["gateway"]}}]
    assert policies["engine"]["ingress"] == [{"ports": [{"port": 7801}], "from": gateways}]
    assert policies["engine"]["egress"] == [{"ports": [{"port": 443}]}]
    assert {"ports": [{"port": 7801}], "to": [{"podSelector": {"matchLabels": labels["engine"]}}]} in policies[
        "gateway"
    ]["egress"]
    assert [rule["ports"] for rule in policies["gateway"]["ingress"]] == [[{"port": 8080}], [{"port": 9464}]]
    assert all("from" in rule for rule in policies["gateway"]["ingress"])
    assert "ingress" not in policies["migrate"]


def test_selectors_find_their_pods(everything: list[Object]) -> None:
    templates = [template["metadata"]["labels"] for template in workloads(everything).values()]
    for each in everything:
        selector = each["spec"].get("selector") if each["kind"] != "NetworkPolicy" and "spec" in each else None
        if selector:
            wanted = selector.get("matchLabels", selector)
            assert sum(wanted.items() <= labels.items() for labels in templates) == 1, each["metadata"]["name"]


def test_an_engine_is_restarted_by_its_own_settings_alone(helm: Helm) -> None:
    def checksums(config: dict[str, Any]) -> dict[str, str]:
        found = workloads(helm.render({"config": config}))
        return {part: found[part]["metadata"]["annotations"]["checksum/config"] for part in ("gateway", "engine")}

    before, limits = checksums({}), checksums({"limits": {"concurrency": 8}})
    assert (before["engine"] == limits["engine"], before["gateway"] == limits["gateway"]) == (True, False)
    assert checksums({"engine": {"sequences_max": 8}})["engine"] != before["engine"]


def test_keda_and_replicas_do_not_contend(helm: Helm) -> None:
    assert "replicas" not in find(helm.render({"keda": {"enabled": True}}), "StatefulSet", "-engines")["spec"]
    assert find(helm.render(), "StatefulSet", "-engines")["spec"]["replicas"] == 1


@pytest.mark.parametrize(
    "values",
    [
        {"gatewy": {}},
        {"gateway": {"replicas": 0}},
        {"gateway": {"resources": {"limits": None}}},
        {"images": {"engine": {"digest": "latest"}}},
        {"config": {"models": []}},
        {"config": {"gateway": {"shutdown_grace_s": 7200}}},
        {"volumes": {"models": None}},
        {"keda": {"queue_s": 0}},
    ],
    ids=json.dumps,
)
def test_values_that_cannot_work_are_refused(helm: Helm, values: dict[str, Any]) -> None:
    with pytest.raises(HelmRefused, match=r"schema|values"):
        helm.render(values)


def test_the_schema_knows_every_value() -> None:
    """A misspelt default would pass if the schema allowed other properties."""
    schema = json.loads((CHART / "values.schema.json").read_text())

    def compare(values: dict[str, Any], known: dict[str, Any], path: str) -> None:
        known = schema["definitions"][known["$ref"].rpartition("/")[2]] if "$ref" in known else known
        if known.get("additionalProperties") is False:
            assert set(values) == set(known["properties"]) - {"global"}, path
            for name, value in values.items():
                if isinstance(value, dict):
                    compare(value, known["properties"][name], f"{path}.{name}")

    compare(yaml.safe_load((CHART / "values.yaml").read_text()), schema, "values")


def test_the_page_of_kubernetes(helm: Helm) -> None:
    """Its values render, and its overlay changes what the base has."""
    values, overlay = [
        yaml.safe_load(block.text) for block in blocks(DOCS / "operators" / "kubernetes.md") if block.language == "yaml"
    ]
    objects = helm.render(values, namespace="models")
    assert find(objects, "StatefulSet", "-engines")["spec"]["replicas"] == values["engine"]["replicas"]
    base = [*yaml.safe_load_all(BASE_FILE.read_text())]
    images = {container["image"].partition(":")[0] for pod in pods(base).values() for container in pod["containers"]}
    assert {image["name"] for image in overlay["images"]} == images
    for patch in overlay["patches"]:
        assert find(base, patch["target"]["kind"])


def test_the_kustomize_base_has_the_charts_objects(helm: Helm) -> None:
    assert base_text(helm) == BASE_FILE.read_text(), "run tests/programs/write_kustomize_base.py"
    kustomization = yaml.safe_load((BASE_FILE.parent / "kustomization.yaml").read_text())
    assert kustomization["resources"] == [BASE_FILE.name]
