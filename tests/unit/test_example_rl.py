"""Returns, gradients, rollouts and scores of `examples/a3c.py` and `examples/impala.py`."""

from __future__ import annotations

import re
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))  # as for the programs themselves
try:
    from support.rl import jobs, rollouts
    from support.rl.policy import Adam, Batch, Policy, log_softmax, pick
    from support.rl.returns import RATIO_MAX, n_step_returns, trace
    from support.rl.scores import EPISODES, SAY_EVERY_S, Scores
finally:
    sys.path.pop(0)

needs_rl = pytest.mark.skipif(bool(rollouts.lacking()), reason="the extra rl is not installed")
Play = dict[str, np.ndarray]


# ---- returns ----


@st.composite
def plays(draw: st.DrawFn) -> Play:
    """Rewards, values and ends of a few steps in a few environments."""
    steps, environments = draw(st.integers(1, 9)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    shape = steps, environments
    ended, truncated = rng.random(shape) < 0.2, rng.random(shape) < 0.2
    return {
        "rewards": rng.standard_normal(shape),
        "values": rng.standard_normal((steps + 1, environments)),
        "ended": ended,
        "cut": ended | truncated,
    }


def find_return(play: Play, step: int, environment: int, discount: float) -> float:
    """The definition: rewards until the episode or the rollout ends, and the value there."""
    total, weight = 0.0, 1.0
    for at in range(step, len(play["rewards"])):
        total += weight * play["rewards"][at, environment]
        weight *= discount
        if play["ended"][at, environment]:
            return total
        if play["cut"][at, environment]:
            break
    return float(total + weight * play["values"][at + 1, environment])


def find_target(play: Play, ratios: np.ndarray, step: int, environment: int) -> float:
    """Equation 1 of the paper: the value, and all later surprises, each with its product."""
    clipped = np.minimum(ratios, RATIO_MAX)
    target, weight = play["values"][step, environment], 1.0
    for at in range(step, len(ratios)):
        follows = 0.0 if play["ended"][at, environment] else 0.9
        value, after = play["values"][at : at + 2, environment]
        surprise = play["rewards"][at, environment] + follows * after - value
        target += weight * clipped[at, environment] * surprise
        weight *= follows * clipped[at, environment]
        if play["cut"][at, environment]:
            break
    return float(target)


@given(plays(), st.floats(0.0, 1.0))
def test_n_step_returns_are_what_their_definition_says(play: Play, discount: float) -> None:
    returns = n_step_returns(**play, discount=discount)
    for (step, environment), found in np.ndenumerate(returns):
        assert found == pytest.approx(find_return(play, step, environment, discount))


@given(plays(), st.integers(0, 1 << 32))
def test_v_trace_is_what_its_equation_says(play: Play, seed: int) -> None:
    ratios = np.exp(np.random.default_rng(seed).standard_normal(play["rewards"].shape))
    traced = trace(ratios, **play, discount=0.9)
    targets = np.vstack([traced.targets, play["values"][-1:]])
    for (step, environment), found in np.ndenumerate(traced.targets):
        assert found == pytest.approx(find_target(play, ratios, step, environment))
        is_cut = play["cut"][step, environment]
        after = (play["values"] if is_cut else targets)[step + 1, environment]
        follows = 0.0 if play["ended"][step, environment] else 0.9 * after
        error = play["rewards"][step, environment] + follows - play["values"][step, environment]
        ratio = min(RATIO_MAX, ratios[step, environment])
        assert traced.advantages[step, environment] == pytest.approx(ratio * error)


@given(plays())
def test_v_trace_of_the_policy_itself_is_the_n_step_return(play: Play) -> None:
    traced = trace(np.ones_like(play["rewards"]), **play)
    returns = n_step_returns(**play)
    np.testing.assert_allclose(traced.targets, returns)
    np.testing.assert_allclose(traced.advantages, returns - play["values"][:-1])


# ---- the policy ----


def draw_batch(rng: np.random.Generator, frames: int = 30) -> Batch:
    actions = rng.integers(0, 2, frames)
    return Batch(rng.standard_normal((frames, 4)), actions, *rng.standard_normal((2, frames)))


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_is_the_slope_of_the_loss(seed: int) -> None:
    policy, rng = Policy(width=6, parameters=200), np.random.default_rng(seed)
    weights = policy.initial(seed=seed) + 0.3 * rng.standard_normal(policy.size)
    batch, step = draw_batch(rng), 1e-6
    slopes = [
        (policy.loss(weights + step * each, batch) - policy.loss(weights - step * each, batch))
        / (2 * step)
        for each in np.eye(policy.size)
    ]
    np.testing.assert_allclose(policy.gradient(weights, batch), slopes, atol=1e-8)
    assert not any(slopes[policy.network_size :])


def test_the_weights_beyond_the_network_have_no_effect_and_stay() -> None:
    small, large = Policy(width=6), Policy(width=6, parameters=1000)
    weights = large.initial(seed=1)
    assert (small.size, large.size, large.network_size) == (
        small.network_size,
        1000,
        small.network_size,
    )
    np.testing.assert_array_equal(weights[: small.size], small.initial(seed=1))
    weights[small.network_size :] = 7
    batch = draw_batch(np.random.default_rng(1))
    assert large.loss(weights, batch) == small.loss(small.initial(seed=1), batch)
    after = Adam(large).step(weights, large.gradient(weights, batch), 0.01)
    assert (after[small.network_size :] == 7).all()
    assert (after[: small.network_size] != weights[: small.network_size]).any()


def test_the_gradient_is_written_into_memory_that_is_there() -> None:
    policy = Policy(width=6, parameters=1000)
    weights, batch = policy.initial(seed=1), draw_batch(np.random.default_rng(1))
    room = np.zeros(policy.size, np.float32)
    assert policy.gradient(weights, batch, out=room) is room
    np.testing.assert_array_equal(room, policy.gradient(weights, batch))


def test_steps_make_the_loss_smaller() -> None:
    policy, batch = Policy(width=16), draw_batch(np.random.default_rng(2))
    weights, adam, losses = policy.initial(seed=2), Adam(policy), []
    for _ in range(30):
        losses.append(policy.loss(weights, batch))
        weights = adam.step(weights, policy.gradient(weights, batch), 0.01)
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("size", [1.0, 1e6])
def test_a_first_step_is_as_long_as_its_rate_whatever_the_gradient(size: float) -> None:
    policy = Policy(width=6)
    weights = np.zeros(policy.size, np.float32)
    after = Adam(policy).step(weights, np.full(policy.size, size, np.float32), 0.01)
    np.testing.assert_allclose(after, -0.01, rtol=1e-4)


def test_probabilities_of_large_scores_are_finite() -> None:
    scores = np.array([[1000.0, 0.0], [0.0, 0.0]])
    logs = log_softmax(scores)
    np.testing.assert_allclose(logs, [[0, -1000], [-np.log(2)] * 2])
    np.testing.assert_array_equal(pick(logs, np.array([1, 0], np.int8)), [logs[0, 1], logs[1, 0]])


# ---- rollouts ----


@needs_rl
def test_a_rollout_has_the_frames_of_its_episodes_and_the_policys_probabilities() -> None:
    policy = Policy(width=6)
    weights = policy.initial(seed=3)
    environments = rollouts.Environments(3, seed=3)
    first, one = environments.play(policy, weights, 60)
    second, two = environments.play(policy, weights, 60)
    np.testing.assert_array_equal(first["observations"][-1], second["observations"][0])
    for rollout, report in ((first, one), (second, two)):
        assert rollout["counts"].sum() == report.frames < 180
        np.testing.assert_array_equal(rollout["counts"][1:], ~rollout["cut"][:-1])
        logs = log_softmax(policy.forward(weights, rollout["observations"][:-1]).scores)
        np.testing.assert_allclose(rollout["logs"], pick(logs, rollout["actions"]), rtol=1e-5)
    cut, counts = (np.vstack([first[name], second[name]]) for name in ("cut", "counts"))
    lengths = []
    for column in range(3):
        ends = [0, *np.flatnonzero(cut[:, column]) + 1]
        lengths += [int(counts[begin:end, column].sum()) for begin, end in pairwise(ends)]
    assert sorted(one.returns + two.returns) == sorted(lengths)


@needs_rl
def test_frames_that_only_begin_an_episode_are_not_learnt_from() -> None:
    policy = Policy(width=6)
    weights = policy.initial(seed=4)
    plays = [rollouts.Environments(2, seed=seed).play(policy, weights, 50) for seed in (4, 5)]
    rollout = rollouts.join([each for each, _ in plays])
    assert rollout["observations"].shape == (51, 4, 4)
    for make in (rollouts.n_step_batch, rollouts.traced_batch):
        batch = make(policy, weights, rollout)
        assert {len(each) for each in batch} == {sum(report.frames for _, report in plays)}
        assert batch.advantages.mean() == pytest.approx(0, abs=1e-5)
        assert batch.advantages.std() == pytest.approx(1, abs=1e-3)


@needs_rl
@pytest.mark.parametrize("make", [rollouts.n_step_batch, rollouts.traced_batch])
def test_a_policy_learns_to_play(make: Any) -> None:
    policy, environments = Policy(), rollouts.Environments(16, seed=0)
    weights, adam, scores = policy.initial(seed=0), Adam(policy), Scores("", 0, 150_000, 195.0)
    while not scores.is_over:
        rollout, report = environments.play(policy, weights, 32)
        weights = adam.step(weights, policy.gradient(weights, make(policy, weights, rollout)), 2e-3)
        scores.add([report])
    assert scores.has_learnt, scores


# ---- scores and options ----


def test_scores_are_of_the_last_episodes_and_rates_leave_out_the_first_step() -> None:
    now_s, lines = [100.0], list[str]()
    scores = Scores("ours", 5, 1000, 50.0, lines.append, lambda: now_s[0])
    scores.add([rollouts.Report(300, [1] * EPISODES)])
    assert (scores.mean, scores.seconds, scores.frames_per_s, lines) == (1.0, 0.0, 0.0, [])
    now_s[0] += SAY_EVERY_S
    scores.add([rollouts.Report(100, [101] * (EPISODES // 2)), rollouts.Report(100, [])])
    assert (scores.mean, scores.has_learnt, scores.frames) == (51.0, True, 500)
    assert scores.frames_per_s == 200 / SAY_EVERY_S
    assert lines == [
        "  ours, seed 5: mean return 51 after 500 frames and 2.0 s, 100 frames/s",
    ]


def test_a_mean_of_too_few_episodes_is_no_mean() -> None:
    scores = Scores("ours", 0, 1000, 50.0)
    scores.add([rollouts.Report(10, [500] * (EPISODES - 1))])
    assert (scores.mean, scores.is_over) == (0.0, False)


def test_a_run_ends_with_its_frames_and_learns_ever_more_slowly() -> None:
    scores = Scores("ours", 0, 100, 50.0)
    rates = []
    while not scores.is_over:
        rates.append(scores.rate)
        scores.add([rollouts.Report(30, [])])
    assert len(rates) == 4
    assert rates == sorted(set(rates), reverse=True)
    assert not scores.has_learnt


def test_the_extra_brings_what_the_programs_look_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=\[]", each)[0] for each in project["optional-dependencies"]["rl"]}
    assert names == set(rollouts.PACKAGES.values())


@pytest.mark.parametrize(("words", "status"), [([], 1), (["--toy"], 0)])
def test_a_package_that_lacks_is_named_with_the_extra_that_has_it(
    words: list[str],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["a3c.py", *words])
    monkeypatch.setattr(jobs, "lacking", lambda: ["gymnasium"])
    with pytest.raises(SystemExit) as ended:
        jobs.parse_options("A program.")
    assert ended.value.code == status
    assert "gymnasium not installed; pip install '.[rl]' installs all" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--actors", "1"], "at least two actors"),
        (["--steps", "0"], "at least two actors, one environment, one step"),
        (["--address", "here"], "--address here: give ADDRESS:PORT"),
        (["--address", "a:1", "--kill"], "--kill: not with --address"),
    ],
)
def test_wrong_options_are_refused(
    words: list[str],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["a3c.py", *words])
    with pytest.raises(SystemExit) as ended:
        jobs.parse_options("A program.")
    assert ended.value.code == 2
    assert text in capsys.readouterr().err
