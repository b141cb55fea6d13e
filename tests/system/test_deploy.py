"""What a cluster and a proxy are told is read by who will read it, and its figures are ours."""

import asyncio
import contextlib
import copy
import datetime
import os
import re
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pymysql
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic_settings import BaseSettings

from local.server import cache
from partway.app import serve
from partway.app.settings import AppSettings
from partway.batch.settings import BatchSettings
from partway.store import database
from partway.store.database import Database
from partway.store.exposition import LIVE_SECONDS, MetricsSettings
from partway.store.settings import DatabaseSettings, read_address
from partway.worker import compute, slots
from partway.worker.settings import WorkerSettings
from proof.settings_page import names_of
from tests.actions import ROOT, claimed, free_port, pass_time, submitted, worked
from tests.conftest import AnyServer

DEPLOY = ROOT / "deploy"

# The oldest that a cluster may be, and the newest that the checker knows.
KUBERNETES = ("1.27", kubernetes_validate.latest_version())

# What MySQL and MariaDB take where nobody said otherwise.
CONNECTIONS = 151

BOUND_SECONDS = 30.0


def tool(name: str) -> str | None:
    """The path of a tool of this machine, or of those that local/setup.sh has unpacked."""
    folders = [cache() / "tools" / "usr" / folder for folder in ("bin", "sbin")]
    places = os.pathsep.join([os.environ.get("PATH", ""), *map(str, folders)])
    return shutil.which(name, path=places)


def needs(name: str) -> pytest.MarkDecorator:
    """Skip where there is no such tool."""
    why = f"{name} is not here: local/setup.sh test fetches nginx where it can"
    return pytest.mark.skipif(tool(name) is None, reason=why)


# Kubernetes.


def read(path: Path) -> list[dict[str, Any]]:
    """The documents of a YAML file."""
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


BASE = DEPLOY / "kubernetes" / "base"
KUSTOMIZATIONS = sorted((DEPLOY / "kubernetes").glob("*/kustomization.yaml"))
RESOURCES = [path.parent / name for path in KUSTOMIZATIONS for name in read(path)[0]["resources"]]
MANIFESTS = [path for path in RESOURCES if path.is_file()]
DOCUMENTS = {
    (document["kind"], document["metadata"]["name"]): document
    for path in MANIFESTS
    for document in read(path)
}

# KEDA's kinds are not among the checker's, and the one package that has them changes pytest. These
# are the members that its documentation names (2.16), as far as we use any of them.
KEDA = {
    "ScaledObject": {
        "spec": {"scaleTargetRef", "pollingInterval", "cooldownPeriod", "idleReplicaCount",
                 "minReplicaCount", "maxReplicaCount", "initialCooldownPeriod", "fallback",
                 "advanced", "triggers"},
        "scaleTargetRef": {"apiVersion", "kind", "name", "envSourceContainerName"},
        "advanced": {"restoreToOriginalReplicaCount", "horizontalPodAutoscalerConfig",
                     "scalingModifiers"},
        "horizontalPodAutoscalerConfig": {"name", "behavior"},
        "triggers": {"type", "name", "useCachedMetrics", "metricType", "metadata",
                     "authenticationRef"},
        "metadata": {"query", "queryValue", "activationQueryValue", "connectionStringFromEnv",
                     "host", "port", "dbName", "username", "passwordFromEnv"},
        "authenticationRef": {"name", "kind"},
    },
    "TriggerAuthentication": {
        "spec": {"podIdentity", "secretTargetRef", "configMapTargetRef", "env",
                 "hashiCorpVault"},
        "secretTargetRef": {"parameter", "name", "key"},
    },
}  # fmt: skip


def named(key: tuple[str, str]) -> str:
    return " ".join(key)


def deployment(program: str) -> dict[str, Any]:
    """The spec of a program's deployment."""
    spec: dict[str, Any] = DOCUMENTS["Deployment", f"partway-{program}"]["spec"]
    return spec


def pod(program: str) -> dict[str, Any]:
    """The spec of its pods."""
    spec: dict[str, Any] = deployment(program)["template"]["spec"]
    return spec


def container(program: str) -> dict[str, Any]:
    """The one container of such a pod."""
    (only,) = pod(program)["containers"]
    found: dict[str, Any] = only
    return found


def told(program: str) -> dict[str, str]:
    """What the base tells a program, by the names of its settings."""
    (base,) = read(BASE / "kustomization.yaml")
    for generated in base["configMapGenerator"]:
        if generated["name"] == f"partway-{program}":
            return dict(literal.split("=", 1) for literal in generated["literals"])
    return {}


def settings_of(kind: type[BaseSettings], program: str) -> Any:
    """The settings that a program has in the base: those told, else the defaults."""
    prefix = str(kind.model_config.get("env_prefix", ""))
    own = {name.removeprefix(prefix).lower(): value for name, value in told(program).items()}
    return kind.model_validate({k: v for k, v in own.items() if k in kind.model_fields})


APP = settings_of(AppSettings, "app")
WORKER = settings_of(WorkerSettings, "worker")
BATCH = BatchSettings()


def is_valid(document: dict[str, Any], version: str) -> None:
    """Nothing; raises what the schema of this version says is wrong."""
    # The package asks for the whole number of a version, of which there is only one.
    kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("key", [key for key in DOCUMENTS if key[0] not in KEDA], ids=named)
def test_a_manifest_is_what_kubernetes_takes(key: tuple[str, str], version: str) -> None:
    is_valid(DOCUMENTS[key], version)


def test_the_checker_tells_a_word_that_kubernetes_does_not_know() -> None:
    wrong = copy.deepcopy(DOCUMENTS["Deployment", "partway-app"])
    wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 75

    with pytest.raises(kubernetes_validate.ValidationError):
        is_valid(wrong, KUBERNETES[0])


def members(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Every member below `name`, each with what it is a member of."""
    for part in value if isinstance(value, list) else [value]:
        if isinstance(part, dict):
            for inner, beyond in part.items():
                yield name, inner
                yield from members(inner, beyond)


@pytest.mark.parametrize("key", [key for key in DOCUMENTS if key[0] in KEDA], ids=named)
def test_the_scaler_says_only_what_keda_knows(key: tuple[str, str]) -> None:
    known = KEDA[key[0]]
    document = DOCUMENTS[key]

    unknown = {
        (name, inner)
        for name, inner in members("spec", document["spec"])
        if name in known and inner not in known[name]
    }

    assert document["apiVersion"] == "keda.sh/v1alpha1"
    assert unknown == set()


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_scaler_behaves_as_kubernetes_lets_a_scaler_behave(version: str) -> None:
    spec = DOCUMENTS["ScaledObject", "partway-worker"]["spec"]

    # What KEDA makes of it.
    is_valid(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "keda-hpa-partway-worker"},
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment"}
                | spec["scaleTargetRef"],
                "minReplicas": spec["minReplicaCount"],
                "maxReplicas": spec["maxReplicaCount"],
                **spec["advanced"]["horizontalPodAutoscalerConfig"],
            },
        },
        version,
    )


@pytest.mark.parametrize("folder", ["base", "scaled"])
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no Debian package has its kustomize")
def test_kustomize_builds_what_kubernetes_takes(folder: str) -> None:
    built = subprocess.run(
        ["kubectl", "kustomize", DEPLOY / "kubernetes" / folder], capture_output=True, text=True
    )

    assert built.returncode == 0, built.stderr
    documents = list(yaml.safe_load_all(built.stdout))
    for document in documents:
        if document["kind"] not in KEDA:
            is_valid(document, KUBERNETES[0])
    (worker,) = (d for d in documents if d["metadata"]["name"] == "partway-worker"
                 and d["kind"] == "Deployment")  # fmt: skip
    assert ("replicas" in worker["spec"]) == (folder == "base")


def test_every_file_and_every_document_of_the_manifests_has_its_sentence() -> None:
    for path in [*KUSTOMIZATIONS, *MANIFESTS]:
        for part in path.read_text(encoding="utf-8").split("\n---\n"):
            first = part.splitlines()[0]
            assert first.startswith("# "), (path, first)
            assert re.search(r"\.$", first), (path, first)


def test_the_pods_run_the_three_programs_and_find_the_database_in_a_secret() -> None:
    for program in ("app", "worker", "batch"):
        assert container(program)["command"] == ["partway", program]
        (url,) = container(program)["env"]
        assert url["name"] == "PARTWAY_DATABASE_URL"
        assert url["valueFrom"] == {"secretKeyRef": {"name": "partway-database", "key": "url"}}
    assert "kind: Secret" not in "".join(path.read_text() for path in MANIFESTS)


def test_what_the_base_tells_a_program_is_a_setting_of_it() -> None:
    for program, kind in (("app", AppSettings), ("worker", WorkerSettings),
                          ("batch", BatchSettings)):  # fmt: skip
        shared = {*names_of(DatabaseSettings), *names_of(MetricsSettings)}
        assert set(told(program)) - {*names_of(kind), *shared} == set()
    assert APP.host == "0.0.0.0"


def test_no_pod_may_do_more_than_it_needs() -> None:
    for program in ("app", "worker", "batch"):
        assert pod(program)["securityContext"]["runAsNonRoot"] is True
        assert pod(program)["automountServiceAccountToken"] is False
        assert container(program)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_what_is_called_is_what_is_there() -> None:
    for kind, wanted in (("Service", ("app",)), ("PodDisruptionBudget", ("app", "worker"))):
        for program in wanted:
            selector = DOCUMENTS[kind, f"partway-{program}"]["spec"]["selector"]
            labels = deployment(program)["template"]["metadata"]["labels"]
            assert selector.get("matchLabels", selector) == labels
    (port,) = container("app")["ports"]
    assert port == {"name": "http", "containerPort": APP.port}
    assert DOCUMENTS["Service", "partway-app"]["spec"]["ports"][0]["targetPort"] == "http"
    scaler = DOCUMENTS["ScaledObject", "partway-worker"]["spec"]
    assert scaler["scaleTargetRef"] == {"name": "partway-worker"}
    for probe in ("livenessProbe", "readinessProbe"):
        assert container("app")[probe]["httpGet"]["port"] == port["name"]


def test_the_door_has_the_paths_that_the_probes_ask() -> None:
    health = (ROOT / "app" / "api" / "health.py").read_text(encoding="utf-8")

    for probe, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        assert container("app")[probe]["httpGet"]["path"] == path
        assert f'"{path}"' in health


@pytest.mark.parametrize("program", ["worker", "batch"])
def test_a_program_without_a_door_is_asked_on_a_port_of_its_own(program: str) -> None:
    settings = settings_of(MetricsSettings, program)
    (source,) = container(program)["envFrom"]
    (port,) = container(program)["ports"]
    probe = container(program)["livenessProbe"]

    assert source == {"configMapRef": {"name": f"partway-{program}"}}
    assert settings.host == "0.0.0.0"
    assert port == {"name": "metrics", "containerPort": settings.port}
    assert probe["httpGet"] == {"path": "/livez", "port": "metrics"}
    # Whoever asks must still be there when it is said that the loop does not come round.
    assert probe["timeoutSeconds"] > LIVE_SECONDS


@pytest.mark.parametrize("program", ["app", "worker", "batch"])
def test_a_prometheus_that_looks_for_pods_finds_the_metrics_of_each(program: str) -> None:
    told_of = deployment(program)["template"]["metadata"]["annotations"]
    (port,) = container(program)["ports"]

    assert told_of == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(port["containerPort"]),
        "prometheus.io/path": "/metrics",
    }


# The figures: each that stands in a file, compared with those of the programs.


def test_a_node_is_given_the_time_to_answer_all_that_it_has_begun() -> None:
    pause = int(container("app")["lifecycle"]["preStop"]["exec"]["command"][1])

    assert APP.drain_seconds > APP.max_deadline_ms / 1000
    needed = pause + APP.drain_seconds + serve.LAST_ANSWERS_SECONDS
    assert needed < pod("app")["terminationGracePeriodSeconds"] <= needed + 15


def test_a_worker_is_given_the_time_to_write_back_and_to_give_back() -> None:
    needed = WORKER.grace_seconds + slots.LAST_WRITES_SECONDS + compute.CLOSE_SECONDS

    assert needed < pod("worker")["terminationGracePeriodSeconds"] <= needed + 15


def test_the_batch_is_given_the_time_for_the_settlement_in_hand() -> None:
    needed = database.RETRY_SECONDS + database.ATTEMPT_SECONDS

    assert needed < pod("batch")["terminationGracePeriodSeconds"]


def test_a_probe_waits_longer_than_a_node_waits_for_its_database() -> None:
    assert container("app")["readinessProbe"]["timeoutSeconds"] > database.RETRY_SECONDS


def test_the_scaler_looks_often_and_counts_the_slots_of_a_worker() -> None:
    spec = DOCUMENTS["ScaledObject", "partway-worker"]["spec"]
    (trigger,) = spec["triggers"]

    assert int(trigger["metadata"]["queryValue"]) == WORKER.concurrency
    # A request that asks for no deadline has 30 s.
    assert spec["pollingInterval"] <= 30 / 4
    assert spec["minReplicaCount"] == deployment("worker")["replicas"]
    behaviour = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behaviour["scaleDown"]["stabilizationWindowSeconds"] > APP.max_deadline_ms / 1000


def test_the_connections_of_all_pods_are_fewer_than_a_server_takes() -> None:
    """With every pod that a deployment under way may have, and those that are about to end."""
    most = DOCUMENTS["ScaledObject", "partway-worker"]["spec"]["maxReplicaCount"]
    rolling = deployment("worker")["strategy"]["rollingUpdate"]
    leaving = -(-most * int(rolling["maxUnavailable"].rstrip("%")) // 100)
    workers = most + leaving + rolling["maxSurge"]
    nodes = (
        2 * deployment("app")["replicas"]
        + deployment("app")["strategy"]["rollingUpdate"]["maxSurge"]
    )
    pool = DatabaseSettings.model_fields["pool_size"].default

    small = int(told("worker")["PARTWAY_POOL_SIZE"])
    assert deployment("batch")["strategy"] == {"type": "Recreate"}
    batches = deployment("batch")["replicas"]
    assert workers * small + (nodes + batches) * pool < CONNECTIONS


# The scaler's question.


def scaler_query() -> str:
    (trigger,) = DOCUMENTS["ScaledObject", "partway-worker"]["spec"]["triggers"]
    query: str = trigger["metadata"]["query"]
    return query


async def test_the_scaler_counts_what_waits_and_what_runs_of_requests_that_can_be_finished(
    db: Database,
) -> None:
    request_id, _ = await submitted(db, 5)
    await worked(db, request_id, 1)
    await claimed(db, request_id, 1)
    cancelled, _ = await submitted(db, 7)
    await db.write("UPDATE requests SET status = 'cancelled', outcome = 'ppppppp',"
                   " closed_at = NOW(6) WHERE id = %s", (cancelled,))  # fmt: skip
    late, _ = await submitted(db, 11)
    await pass_time(db, late, 60)

    rows = await db.read(scaler_query())

    # Five less the one that is done.
    assert [list(row.values()) for row in rows] == [[4]]


async def test_the_account_of_the_scaler_may_count_and_read_no_text(
    db: Database, server: AnyServer, url: str
) -> None:
    await submitted(db, 3)
    address = read_address(url)
    text = (DEPLOY / "kubernetes" / "keda" / "kustomization.yaml").read_text(encoding="utf-8")
    statements = re.findall(r"^#\s+((?:CREATE USER|GRANT) .*);$", text, re.MULTILINE)
    user = f"scaler_{address.database}"[-32:]
    assert len(statements) == 3
    try:
        for statement in statements:
            ours = statement.replace("partway_scaler", user)
            server.execute(ours.replace(" partway.", f" {address.database}."))
        where = {"unix_socket": address.unix_socket} if address.unix_socket else {}
        with (
            pymysql.connect(
                host=address.host,
                port=address.port,
                user=user,
                password="PASSWORD",
                database=address.database,
                **where,
            ) as link,
            link.cursor() as cursor,
        ):
            cursor.execute(scaler_query())
            assert cursor.fetchall() == ((3,),)
            for forbidden in ("SELECT source FROM segments", "DELETE FROM requests"):
                with pytest.raises(pymysql.err.OperationalError, match="denied"):
                    cursor.execute(forbidden)
    finally:
        server.execute(f"DROP USER IF EXISTS {user}@'%'")


# The proxy.

CONF = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
HOST = "partway.example.com"


def seconds(directive: str) -> list[int]:
    """What the proxy is told, each time it is."""
    return [int(found) for found in re.findall(rf"^\s*{directive}\s+(\d+)s;", CONF, re.MULTILINE)]


def test_the_proxy_waits_longer_than_any_call_takes() -> None:
    (waits,) = seconds("proxy_read_timeout")

    assert waits >= APP.max_deadline_ms / 1000 + 5 + serve.LAST_ANSWERS_SECONDS
    (shunned,) = re.findall(r"app-1:\d+ fail_timeout=(\d+)s;", CONF)
    assert int(shunned) >= APP.max_deadline_ms / 1000


def test_the_proxy_lets_go_of_an_idle_connection_before_the_node_does() -> None:
    to_nodes, to_clients = seconds("keepalive_timeout")

    assert to_nodes < APP.keep_alive_seconds
    assert f"(after {APP.keep_alive_seconds} s)" in CONF
    assert to_clients > 60


def test_the_proxy_leaves_it_to_the_node_to_refuse_a_body() -> None:
    (megabytes,) = re.findall(r"client_max_body_size\s+(\d+)m;", CONF)

    assert int(megabytes) * 2**20 > APP.max_body_bytes


def test_the_proxy_asks_the_port_of_the_nodes() -> None:
    assert {int(port) for port in re.findall(r"server app-\d:(\d+)", CONF)} == {APP.port}


def certificate(folder: Path) -> Path:
    """A certificate for the host of the file, signed by itself; its key lies beside it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "partway.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "partway.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return folder / "partway.crt"


def proxy(folder: Path, port: int, node: int) -> list[str]:
    """The command that runs nginx with the file as it is, but for addresses and folders of ours."""
    certificate(folder)
    ours = re.sub(r"app-\d:\d+", f"127.0.0.1:{node}", CONF)
    ours = ours.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl")
    (folder / "partway.conf").write_text(ours.replace("/etc/nginx/", f"{folder}/"))
    temporary = "".join(
        f"    {kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    # One process, which needs no account of its own and ends when it is told.
    (folder / "nginx.conf").write_text(
        f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log stderr;\nevents {{}}\n"
        f"http {{\n    access_log off;\n{temporary}    include {folder}/partway.conf;\n}}\n"
    )
    program = tool("nginx")
    assert program is not None
    return [program, "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")]


@needs("nginx")
def test_nginx_takes_the_file(tmp_path: Path) -> None:
    ended = subprocess.run(
        [*proxy(tmp_path, free_port(), free_port()), "-t"], capture_output=True, text=True
    )

    assert ended.returncode == 0, ended.stderr
    assert "syntax is ok" in ended.stderr
    assert "warn" not in ended.stderr


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[None]:
    """A program for as long as the block lasts."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.asynccontextmanager
async def a_node(heard: list[str], go_on: asyncio.Event) -> AsyncIterator[int]:
    """The port of a node that answers with an event, and with the next only when told to."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            heard.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                         b"Transfer-Encoding: chunked\r\n\r\n7\r\nfirst\n\n\r\n")  # fmt: skip
            await writer.drain()
            await go_on.wait()
            writer.write(b"8\r\nsecond\n\n\r\n0\r\n\r\n")
            await writer.drain()
        writer.close()

    node = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield node.sockets[0].getsockname()[1]
    finally:
        node.close()


async def called(port: int, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The answer of the proxy to a GET of its host, as it comes."""
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    async with asyncio.timeout(BOUND_SECONDS):
        while True:
            try:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, ssl=trust, server_hostname=HOST
                )
                break
            except OSError:
                await asyncio.sleep(0.02)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\n\r\n".encode())
    return reader, writer


@needs("nginx")
async def test_the_proxy_keeps_the_metrics_of_a_node_to_itself(tmp_path: Path) -> None:
    heard: list[str] = []
    port = free_port()
    async with a_node(heard, asyncio.Event()) as node:
        with running(proxy(tmp_path, port, node)):
            reader, writer = await called(port, "/metrics")
            async with asyncio.timeout(BOUND_SECONDS):
                first = await reader.readuntil(b"\r\n")
            writer.close()

    assert first.startswith(b"HTTP/1.1 404 ")
    assert heard == []


@needs("nginx")
async def test_an_event_passes_the_proxy_before_the_next_is_there(tmp_path: Path) -> None:
    heard: list[str] = []
    go_on = asyncio.Event()
    port = free_port()
    async with a_node(heard, go_on) as node:
        with running(proxy(tmp_path, port, node)):
            reader, writer = await called(port, "/v1/requests/letter-18/events")
            async with asyncio.timeout(BOUND_SECONDS):
                first = await reader.readuntil(b"first\n\n")
                go_on.set()
                await reader.readuntil(b"second\n\n")
            writer.close()

    assert first.startswith(b"HTTP/1.1 200 OK")
    assert f"\r\nHost: {HOST}:{port}\r\n" in heard[0]
    assert "\r\nX-Forwarded-Proto: https\r\n" in heard[0]
