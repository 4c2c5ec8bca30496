"""The configuration of a deployment that scales ahead of its queries."""

from __future__ import annotations

import warnings
from typing import Any

from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from hoplite_ray.serve.slo.policy import Ahead, make_goal

REPORT_S = 0.2  # between two reports of a replica; the newest is then at most 0.5 s old
LOOK_BACK_S = 1.0  # of Serve's mean of ongoing queries; it must exceed REPORT_S


def scale_ahead(
    *,
    max_replicas: int,
    min_replicas: int = 1,
    initial_replicas: int | None = None,
    target_ongoing_requests: float = 2.0,
    **options: float | None,
) -> AutoscalingConfig:
    """Return Serve's `autoscaling_config` for a deployment whose replicas are to be there in time.

        @stage(max_batch=3, autoscaling_config=scale_ahead(
            min_replicas=2, max_replicas=20,
            latency_s=0.2, capacity_per_s=37.5, service_s=0.08))
        class Vision: ...

    `Plan.scale` does this for all stages of a plan. Serve's own delays and factors are switched
    off, because the policy has a hold time, and replicas report five times a second, because it
    can't foresee by older reports.

    min_replicas:            that answer queries; max_replicas, initial_replicas: of Serve.
    target_ongoing_requests: queries at a replica at once, for a policy without `capacity_per_s`.
    options:                 latency_s (0.2), capacity_per_s, service_s, miss (0.01), start_s (3),
                             hold_s (60), spare (0), prepared (0), forecast (True): the fields of
                             `slo.ahead.Goal`.

    Raises:  TypeError for a name that is no option; ValueError for a value that it can't have.
    Cost:    in Serve's controller 0.2 ms four times a second for each deployment.
    Source:  Vortex 5.3; docs/internals/decisions/0035-scaling-ahead.md.
    """
    make_goal(options, target_ongoing_requests)  # here, because the controller can only log it
    given: dict[str, Any] = {key: each for key, each in options.items() if each is not None}
    policy = AutoscalingPolicy(  # type: ignore[no-untyped-call]
        policy_function=Ahead,
        policy_kwargs=given,
    )
    with warnings.catch_warnings():
        # Serve calls metrics_interval_s deprecated. The variable that is to replace it has no
        # effect on one deployment.
        warnings.simplefilter("ignore", DeprecationWarning)
        return AutoscalingConfig(
            min_replicas=min_replicas,
            max_replicas=max_replicas,
            initial_replicas=initial_replicas,
            target_ongoing_requests=target_ongoing_requests,
            metrics_interval_s=REPORT_S,
            look_back_period_s=LOOK_BACK_S,
            upscale_delay_s=0.0,
            downscale_delay_s=0.0,
            policy=policy,
        )
