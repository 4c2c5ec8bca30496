"""The worth of a frame: n-step returns and V-trace, over rollouts of several environments.

All arrays are of shape (steps, environments), except `values`, which has a step more: the value of
the observation after the last action. An episode that was `cut` ends at that step; if it `ended` by
itself nothing follows it, and otherwise the value of its last observation does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

DISCOUNT = 0.99
RATIO_MAX = 1.0  # of probabilities, in both of V-trace's roles


class Traced(NamedTuple):
    targets: np.ndarray  # of the values
    advantages: np.ndarray  # of the actions


def n_step_returns(
    rewards: np.ndarray,
    values: np.ndarray,
    ended: np.ndarray,
    cut: np.ndarray,
    *,
    discount: float = DISCOUNT,
) -> np.ndarray:
    """Return the discounted rewards from each frame on, to the episode's or the rollout's end.

    The value of the observation there stands for all later rewards.
    Source: Mnih et al., "Asynchronous methods for deep reinforcement learning", ICML 2016.
    """
    returns = np.empty_like(values[:-1])
    following = values[-1]
    for step in reversed(range(len(rewards))):
        after = np.where(cut[step], values[step + 1], following)
        following = returns[step] = rewards[step] + discount * np.where(ended[step], 0, after)
    return returns


def trace(
    ratios: np.ndarray,
    rewards: np.ndarray,
    values: np.ndarray,
    ended: np.ndarray,
    cut: np.ndarray,
    *,
    discount: float = DISCOUNT,
) -> Traced:
    """Return V-trace's targets and advantages, for actions that an older policy has chosen.

    ratios: each action's probability under the policy that learns, by that under the older one.

    Source: Espeholt et al., "IMPALA", ICML 2018, equation 1 and section 4.2.
    """
    clipped = np.minimum(ratios, RATIO_MAX)
    discounts = np.where(ended, 0.0, discount)
    surprises = clipped * (rewards + discounts * values[1:] - values[:-1])
    corrections = np.zeros_like(values)
    for step in reversed(range(len(rewards))):
        later = np.where(cut[step], 0.0, corrections[step + 1])
        corrections[step] = surprises[step] + discounts[step] * clipped[step] * later
    targets = values + corrections
    after = np.where(cut, values[1:], targets[1:])
    return Traced(targets[:-1], clipped * (rewards + discounts * after - values[:-1]))
