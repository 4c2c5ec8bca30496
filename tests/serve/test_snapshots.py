"""One cut of a table for each query, in all stages of a pipeline."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import hoplite_ray as hop
from hoplite_ray.serve import pipeline
from tests.ray.raycluster import eventually
from tests.serve.applications import Pairs, Reads
from tests.serve.conftest import Application, Node


@pytest.mark.parametrize("options", [{}, {"edges": "serve"}], ids=["edges", "handles"])
@pytest.mark.slow  # test_serve_replica.py has the way of a query's time, and test_table.py the cuts
def test_all_stages_read_one_cut_for_each_query(node: Node, options: dict[str, Any]) -> None:
    table = hop.Table("pairs")
    first = table.put_all({"x": np.array(0), "y": np.array(0)})["x"]
    assert eventually(lambda: time.time() > first.time_s + 0.2)
    stages = {"one": Reads.bind(table, "x"), "two": Reads.bind(table, "y")}
    application = Application(
        "snapshots", pipeline(**stages, join=Pairs.after("one", "two"), replicas=1, **options)
    )
    seen = set()
    for number in range(1, 100):
        asked = [application.ask(number) for _ in range(4)]
        table.put_all({"x": np.array(number), "y": np.array(number)})
        for each in asked:
            x, y = each.result(timeout_s=60)
            assert x == y
            seen.add(x)
    assert len(seen) > 2
    application.delete()
