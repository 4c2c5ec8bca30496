"""What `benchmarks/training.py` says of its turns, and the models that it trains."""

from __future__ import annotations

from typing import Any

import applications
import pytest
import training


def turn(peer: str, *seconds: float, failure: str | None = None) -> dict[str, Any]:
    used = {"busy_s": 8.0, "cores_s": 20.0, "compute_s": 2.0}
    return {"peer": peer, "seconds": list(seconds), "failure": failure, **used}


def line(peer: str, *turns: dict[str, Any]) -> training.Line:
    return training.Line("async SGD", 25_000_000, peer, 2.0, list(turns), 25_001_234)


@pytest.mark.parametrize("parameters", [100_000, 10_000_000, 25_000_000, 60_000_000])
def test_a_model_has_the_parameters_that_were_asked_for(parameters: int) -> None:
    assert parameters <= applications.perceptron(parameters).size < 1.01 * parameters


def test_a_line_is_the_median_of_all_turns_beside_its_bound_and_its_cores() -> None:
    ours = line("hoplite", turn("hoplite", 2.0, 4.0), turn("hoplite", 3.0))
    rate, median_s, least_s, most_s, ratio, busy, communication = ours.text().split()[5:]
    assert (rate, median_s, least_s, most_s) == ("0.333", "3.000", "2.000", "4.000")
    assert (ratio, busy, communication) == ("1.50", "40%", "75%")


def test_what_failed_is_said_and_not_compared() -> None:
    gloo = line("gloo", turn("gloo", failure="ModuleNotFoundError: No module named 'torch'"))
    assert "FAILED: ModuleNotFoundError: No module named 'torch'" in gloo.text()
    assert training.ratios([line("hoplite", turn("hoplite", 1.0)), gloo]) == []


def test_the_ratio_is_of_the_same_model_in_the_same_run() -> None:
    table = [line("hoplite", turn("hoplite", 1.0)), line("ray", turn("ray", 3.0, 4.0, 5.0))]
    assert training.ratios(table) == ["async SGD 25 M: 4.00 x as fast as ray"]
