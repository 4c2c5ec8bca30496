"""Stages on a GPU: arrays go between replicas by NCCL, and a death costs no answer.

Where there is no GPU a library stands in for NCCL and the driver, on memory of the host.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from hoplite_ray.serve import pipeline, stage
from tests.process.fake_gpu import LIBRARY
from tests.ray.raycluster import eventually
from tests.serve.conftest import Application, Node
from tests.serve.gpu_applications import ELEMENTS, Filled, Summed

QUERIES = range(40)


@pytest.fixture(params=["torch", "stand-in"])
def application(node: Node, request: pytest.FixtureRequest) -> Iterator[Application]:
    actor: dict[str, Any] = {"num_cpus": 0}
    if request.param == "torch":
        torch = pytest.importorskip("torch", reason="torch is not installed")
        if not torch.cuda.is_available():
            pytest.skip("no GPU")  # there the stand-in shows all but the GPU itself
        actor["num_gpus"] = 0.1
    else:
        names = ("HOPLITE_RAY_NCCL_LIBRARY", "HOPLITE_RAY_CUDA_LIBRARY")
        actor["runtime_env"] = {"env_vars": dict.fromkeys(names, str(LIBRARY))}
    how: dict[str, Any] = {"num_replicas": 2, "ray_actor_options": actor}
    filled, summed = (stage(each, **how).bind(request.param) for each in (Filled, Summed))
    started = Application("gpu", pipeline(filled=filled, summed=summed.after("filled")))
    yield started
    started.delete()


def sent_by_gpu(node: Node) -> float:
    """Bytes so far, of all edges."""
    with urllib.request.urlopen(node.metrics) as page:
        lines = page.read().decode().splitlines()
    name = "ray_hoplite_serve_edge_gpu_bytes_total{"
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def test_arrays_go_from_gpu_to_gpu_and_a_death_costs_no_answer(
    application: Application, node: Node
) -> None:
    expected = [[query, [ELEMENTS // 50, 50], float(query * ELEMENTS)] for query in QUERIES]
    assert [application.answer(query) for query in QUERIES] == expected
    assert eventually(lambda: sent_by_gpu(node) >= 2 * ELEMENTS * len(QUERIES), within_s=30)
    for victim in ("summed", "filled"):
        asked = [application.ask(query) for query in QUERIES]
        application.kill_one_of(victim)
        assert [each.result(timeout_s=60) for each in asked] == expected
