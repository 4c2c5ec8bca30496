"""Serve's own commands build an application and run it, and run it anew while it is asked."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from ray import serve

from tests.ray.raycluster import eventually
from tests.serve.conftest import Application, Node

ROOT = Path(__file__).parents[2]
ASKERS = 2


def serve_command(*arguments: str) -> None:
    command = [str(Path(sys.executable).with_name("serve")), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@contextmanager
def asked_all_the_while(url: str) -> Iterator[list[int]]:
    """Ask over HTTP until the end, and see that each answer is its query; yields the answers."""
    is_over, answers, failures = threading.Event(), list[int](), list[BaseException]()

    def ask(first: int) -> None:
        query = first
        try:
            while not is_over.is_set():
                data = json.dumps(query).encode()
                with urllib.request.urlopen(url, data=data, timeout=60) as answer:
                    assert json.load(answer) == query
                answers.append(query)
                query += ASKERS
        except BaseException as error:
            failures.append(error)

    askers = [threading.Thread(target=ask, args=(first,)) for first in range(ASKERS)]
    for each in askers:
        each.start()
    try:
        yield answers
    finally:
        is_over.set()
        for each in askers:
            each.join()
    assert not failures


def is_running() -> bool:
    told = serve.status().applications.get("built")
    return told is not None and told.status == "RUNNING"


def test_it_is_updated_and_scaled_without_an_error(node: Node, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    serve_command("build", "tests.serve.built:app", "-o", str(config))
    [built] = yaml.safe_load(config.read_text())["applications"]
    built |= {"name": "built", "route_prefix": "/built"}
    deployments: dict[str, Any] = {each["name"]: each for each in built["deployments"]}
    assert deployments.keys() == {"first", "last", "ingress"}

    def run() -> None:
        config.write_text(yaml.safe_dump({"applications": [built]}))
        serve_command("run", "--non-blocking", "-a", node.address, str(config))
        assert eventually(is_running, within_s=60)

    def is_updated(old: set[int], first: int) -> bool:
        pids = {name: application.pids(name) for name in deployments}
        return len(pids["first"]) == first and old.isdisjoint(chain(*pids.values()))

    run()
    application = Application.running("built")
    assert application.answer(7) == 7
    with asked_all_the_while(f"{node.http}/built") as answers:
        old = {pid for name in deployments for pid in application.pids(name)}
        for each in deployments.values():  # new replicas for all old ones
            each["ray_actor_options"] = {"num_cpus": 0.01}
        deployments["first"]["num_replicas"] = 3
        run()
        assert eventually(lambda: is_updated(old, first=3), within_s=60)
        deployments["first"]["num_replicas"] = 1
        run()
        assert eventually(lambda: is_updated(old, first=1), within_s=60)
        so_far = len(answers)
        assert eventually(lambda: len(answers) > so_far + 20)
    application.delete()
