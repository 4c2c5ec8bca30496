"""The policy in Serve's controller: what it gets by value, and what it keeps over redeployments."""

from __future__ import annotations

import ast
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ray import cloudpickle

from hoplite_ray.serve.slo import ahead, policy, rates
from hoplite_ray.serve.slo.policy import MEMORY, MEMORY_MAX_S, Ahead
from hoplite_ray.serve.slo.scaling import scale_ahead
from tests.unit.serve_contexts import CONFIG, PLAN, Cluster, make_context


@pytest.fixture(autouse=True)
def forget_state() -> Iterator[None]:
    """Let no test leave state to the next, as one process has it."""
    yield
    sys.__dict__.pop(MEMORY, None)


def load_anew(**options: Any) -> Any:
    """Return the policy as the controller has it after another serve.run."""
    trackers = cloudpickle.cloudpickle  # by which a process knows the classes of its own pickles
    trackers._DYNAMIC_CLASS_TRACKER_BY_CLASS.clear()
    shipped = scale_ahead(min_replicas=1, max_replicas=60, **options).policy
    trackers._DYNAMIC_CLASS_TRACKER_BY_ID.clear()
    made = pickle.loads(shipped._serialized_policy_def)
    assert made is not Ahead and made.__call__.__globals__ is not Ahead.__call__.__globals__
    return made(**options)


def test_after_a_redeployment_it_knows_the_rate_and_the_time_of_a_start() -> None:
    cluster = Cluster(load_anew(**PLAN), 4)
    cluster.run(100, 30)
    cluster.policy._decider.starts.took_s = [7.0, 7.5]
    cluster.take(load_anew(**PLAN, hold_s=30))
    told = cluster.run(100, 0.5)
    assert told["rate_per_s"] == pytest.approx(100, rel=0.03)
    assert told["start_s"] == 7.0
    cluster.take(load_anew(**PLAN, hold_s=30))
    cluster.run(300, 4)
    assert cluster.target >= 300 / 37.5, "the third policy's memory is that of the second"


def test_what_was_needed_is_held_over_a_redeployment() -> None:
    cluster = Cluster(load_anew(**PLAN), 4)
    cluster.run(300, 65)
    cluster.run(100, 50)
    held = cluster.target
    cluster.take(load_anew(**PLAN))
    cluster.run(100, 5)
    assert cluster.target == held > 6, "55 s of the hold are over"
    cluster.run(100, 20)
    assert cluster.target < held


@pytest.mark.parametrize("spoil", ["old", "other parts", "no dict"])
def test_state_that_is_old_or_strange_is_forgotten(spoil: str) -> None:
    cluster = Cluster(load_anew(**PLAN), 4)
    cluster.run(100, 30)
    memory = sys.__dict__[MEMORY]["app#vision"]
    target = cluster.target
    if spoil == "old":
        cluster.now_s += MEMORY_MAX_S + 1
    elif spoil == "other parts":
        memory["parts"] = {}
    else:
        sys.__dict__[MEMORY]["app#vision"] = 3
    cluster.take(load_anew(**PLAN))
    cluster.run(100, 0.5)
    assert cluster.target == target
    assert cluster.run(100, 10)["rate_per_s"] == pytest.approx(100, rel=0.1)


def test_deployments_have_state_of_their_own_of_plain_numbers() -> None:
    cluster = Cluster(load_anew(**PLAN), 4)
    cluster.run(100, 30)
    other = make_context(2, 2)
    other.deployment_name = "speech"
    scaler = load_anew(**PLAN)
    scaler.clock = lambda: cluster.now_s
    scaler(other)
    memories = sys.__dict__[MEMORY]
    assert set(memories) == {"app#vision", "app#speech"}
    assert memories["app#vision"]["parts"]["arrivals"]["bins"]
    assert not memories["app#speech"]["parts"]["arrivals"]["bins"]
    assert json.dumps(memories["app#vision"]), "no object of a class that another release lacks"


SHIPPED = (policy, ahead, rates)  # what the controller gets by value


@pytest.mark.parametrize("module", SHIPPED, ids=lambda module: module.__name__)
def test_what_goes_by_value_imports_nothing_else_of_ours(module: ModuleType) -> None:
    allowed = {*sys.stdlib_module_names, "ray", *(each.__name__ for each in SHIPPED)}
    tree = ast.parse(Path(str(module.__file__)).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module
            is_room = node.module == "hoplite_ray.serve.slo"
            names = [f"{node.module}.{each.name}" for each in node.names] if is_room else []
            names = names or [node.module]
        else:
            continue
        for name in names:
            assert name in allowed or name.split(".")[0] in allowed, name


WITHOUT_US = """
import pickle, sys
from types import SimpleNamespace
sys.modules["hoplite_ray"] = None  # every import of it raises
policy = pickle.loads(sys.stdin.buffer.read())(latency_s=0.2, capacity_per_s=37.5, service_s=0.08)
now_s, target = 0.0, 1
policy.clock = lambda: now_s
for tick in range(200):
    now_s += 0.1
    series = [SimpleNamespace(timestamp=now_s, value=20.0 * tick)]
    context = SimpleNamespace(
        app_name="app", deployment_name="vision", target_num_replicas=target,
        current_num_replicas=target, capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=60, raw_metrics={"hoplite_arrivals": {"r0": series}},
        config=SimpleNamespace(get_target_ongoing_requests=lambda: 2.0),
    )
    target, told = policy(context)
assert told, "it failed"
assert not [name for name in sys.modules if name.startswith("hoplite_ray.")]
print(target)
"""


def test_a_process_without_this_package_runs_it() -> None:
    shipped = CONFIG.policy._serialized_policy_def
    again = scale_ahead(min_replicas=1, max_replicas=2).policy._serialized_policy_def
    for blob in (shipped, again):  # Serve registers and forgets the policy's own module each time
        ran = subprocess.run(
            [sys.executable, "-c", WITHOUT_US], input=blob, capture_output=True, check=False
        )
        assert ran.returncode == 0, ran.stderr.decode()
        assert int(ran.stdout) >= 200 / 37.5
