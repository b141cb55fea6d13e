"""docker-compose.yml is read, and what it would run is run: its commands, as plain processes."""

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pymysql
import pytest
import yaml

from local import children
from local.server import KINDS, Server, find

TREE = Path(__file__).resolve().parents[2]

PROGRAMS = ("app", "batch", "worker")

BOUND_SECONDS = 60.0

# The command as it is installed, beside the Python of the tests.
INSTALLED = str(Path(sys.executable).with_name("partway"))


def compose() -> dict[str, Any]:
    """The file as compose sees it, with nothing set in its environment."""
    text = (TREE / "docker-compose.yml").read_text(encoding="utf-8")
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
    found: dict[str, Any] = yaml.safe_load(text.replace("$$", "$"))
    return found


SERVICES: dict[str, Any] = compose()["services"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(params=KINDS)
def image(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server as the image sets one up: over TCP, one database, one account that owns only it."""
    program = find(request.param)
    if program is None:
        pytest.skip(f"there is no {request.param} server here")
    told = SERVICES["db"]["environment"]
    server = Server(program, tmp_path / "server", tcp=True)
    server.start()
    try:
        server.execute("DROP USER partway@'%'")
        server.execute(f"CREATE DATABASE {told['MYSQL_DATABASE']}")
        account = f"{told['MYSQL_USER']}@'%'"
        server.execute(f"CREATE USER {account} IDENTIFIED BY '{told['MYSQL_PASSWORD']}'")
        server.execute(f"GRANT ALL ON {told['MYSQL_DATABASE']}.* TO {account}")
        yield server
    finally:
        server.stop()


def test_the_services_are_the_database_and_the_three_programs() -> None:
    assert sorted(SERVICES) == ["app", "batch", "db", "worker"]
    assert SERVICES["db"]["image"] == "mysql:8.4"
    assert SERVICES["worker"]["deploy"]["replicas"] == 2
    for name in PROGRAMS:
        assert SERVICES[name]["command"][:2] == ["partway", name]
        assert SERVICES[name]["depends_on"] == {"db": {"condition": "service_healthy"}}


def test_only_the_app_can_be_reached_from_outside() -> None:
    assert [name for name in SERVICES if "ports" in SERVICES[name]] == ["app"]


def test_each_service_and_each_line_of_the_image_has_its_sentence() -> None:
    lines = (TREE / "docker-compose.yml").read_text(encoding="utf-8").splitlines()
    for name in SERVICES:
        place = lines.index(f"  {name}:")
        assert lines[place - 1].startswith("  # "), name
        assert lines[place - 1].endswith("."), name


def test_the_image_holds_everything_that_the_programs_need() -> None:
    dockerfile = (TREE / "Dockerfile").read_text(encoding="utf-8")
    for name in (*PROGRAMS, "store", "client", "partway"):
        assert re.search(rf"^COPY {re.escape(name)} ", dockerfile, re.MULTILINE), name


def test_the_health_check_of_the_database_asks_over_tcp_as_the_programs(image: Server) -> None:
    shell, line = SERVICES["db"]["healthcheck"]["test"]
    told = SERVICES["db"]["environment"]
    line = line.replace("$MYSQL_PASSWORD", told["MYSQL_PASSWORD"])
    client, *words = shlex.split(line)
    options = dict(word.removeprefix("--").split("=", 1) for word in words[:-1])

    assert (shell, client, options["protocol"]) == ("CMD-SHELL", "mysql", "tcp")
    connection = pymysql.connect(
        host=options["host"],
        port=image.port or 0,
        user=options["user"],
        password=options["password"],
        database=words[-1],
    )
    with connection, connection.cursor() as cursor:
        cursor.execute(options["execute"])
        assert cursor.fetchall() == ((0,),)


def test_the_commands_answer_a_request_and_end_when_told(image: Server, tmp_path: Path) -> None:
    port = free_port()
    running = {
        name: children.start(
            [INSTALLED, *SERVICES[name]["command"][1:]],
            tmp_path / f"{name}.log",
            env=environment(name, image.port or 0, port),
            cwd=TREE,
        )
        for name in PROGRAMS
    }
    try:
        wait_until_healthy(port, tmp_path / "app.log")
        key = first_key(environment("app", image.port or 0, port))
        answer = httpx.post(
            f"http://127.0.0.1:{port}/v1/requests",
            json={"document": "The train is late. The soup is hot.", "deadline_ms": 30_000},
            headers={"Authorization": f"Bearer {key}"},
            timeout=BOUND_SECONDS,
            trust_env=False,
        )
    finally:
        ended = {name: children.end(process, 35) for name, process in running.items()}

    assert answer.status_code == 200, answer.text
    assert answer.json()["status"] == "completed", answer.text
    logs = {name: children.last_lines(tmp_path / f"{name}.log") for name in PROGRAMS}
    assert ended == dict.fromkeys(PROGRAMS, 0), logs


def first_key(environment: dict[str, str]) -> str:
    """The key that is made as the file says."""
    text = (TREE / "docker-compose.yml").read_text(encoding="utf-8")
    said = re.search(r"^#   docker compose run --rm app partway (.+)$", text, re.MULTILINE)
    assert said is not None
    made = subprocess.run(
        [INSTALLED, *said[1].split()],
        env=environment,
        cwd=TREE,
        capture_output=True,
        text=True,
        timeout=BOUND_SECONDS,
    )
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def environment(name: str, database_port: int, port: int) -> dict[str, str]:
    """What a service is told, with the addresses of containers replaced by ours."""
    told = dict(SERVICES[name]["environment"])
    told["PARTWAY_DATABASE_URL"] = told["PARTWAY_DATABASE_URL"].replace(
        "@db:3306/", f"@127.0.0.1:{database_port}/"
    )
    if name == "app":
        told |= {"PARTWAY_APP_HOST": "127.0.0.1", "PARTWAY_APP_PORT": str(port)}
    ours = {key: value for key, value in os.environ.items() if not key.startswith("PARTWAY_")}
    return ours | told


def wait_until_healthy(port: int, log: Path) -> None:
    """Ask as the health check of the app asks."""
    marker, _, *code = SERVICES["app"]["healthcheck"]["test"]
    assert marker == "CMD"
    command = [sys.executable, *(word.replace(":8000/", f":{port}/") for word in code)]
    give_up = time.monotonic() + BOUND_SECONDS
    while subprocess.run(command, capture_output=True).returncode != 0:
        assert time.monotonic() < give_up, children.last_lines(log)
        time.sleep(0.1)
