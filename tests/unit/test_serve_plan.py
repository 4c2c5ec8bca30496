"""Plans: the application gets their caps, replicas and latency; names that don't fit are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hoplite_ray import serve
from hoplite_ray.serve.slo.contract import SLO
from hoplite_ray.serve.slo.plan import Plan, plan
from tests.unit.serve_profiles import line

PROFILES = {"text": line(0.02, 0.002), "cross": line(0.005, 0.0005)}
PROFILES_ON_HALF = {"half": line(0.005, 0.0005)}
OBJECTIVE = SLO(latency_s=0.2, rate_per_s=500)


@serve.stage(max_batch=7)
class Text:
    def __call__(self, queries: list[Any]) -> list[Any]:
        return queries


def make_plan(**options: Any) -> Plan:
    stages = {"text": Text, "cross": Text.after("text")}
    application = serve.pipeline(stages, deadline_s=9.0)
    return plan(application, OBJECTIVE, PROFILES, **options)


def test_the_application_has_the_plans_caps_replicas_and_latency() -> None:
    made = make_plan(late="drop")
    spec = made.application.spec
    for name, each in spec.stages.items():
        assert each.max_batch == made.caps[name]
        assert each.serve_options["num_replicas"] == made.replicas[name]
        assert each.late.value == "drop"
        assert each.budget_s == made.share_latency()[name]
        assert each.options(max_batch=3).budget_s == each.budget_s
    assert (spec.latency_s, spec.deadline_s) == (0.2, 9.0)
    assert made.pipeline.spec.stages["text"].max_batch == 7, "as it was"
    assert made.cost == sum(made.replicas.values())


def test_a_plan_explains_itself() -> None:
    text = str(make_plan())
    for words in ("200 ms for all but 1 % of 500", "expected", "text: ", "max_batch=", " limits"):
        assert words in text


def test_a_renewed_plan_predicts_from_what_was_seen() -> None:
    made = make_plan()
    seen = line(0.02, 0.002, hops_s=(0.02,))
    renewed = made.renew({"text": seen})
    assert (renewed.caps, renewed.replicas) == (made.caps, made.replicas)
    assert renewed.graph.stages["cross"] == made.graph.stages["cross"]
    later_s = renewed.predict([0.0, 9.0]).p50_s - made.predict([0.0, 9.0]).p50_s
    assert later_s == pytest.approx(2 * (0.02 - made.graph.hop_s))
    with pytest.raises(ValueError, match=r"profiles\['rank'\] is of no stage"):
        made.renew({"rank": seen})


def test_a_plan_draws_its_curve(tmp_path: Path) -> None:
    path = tmp_path / "curve.svg"
    figure = make_plan().plot([50, 400, 700], path)
    assert len(figure.axes) == 2
    assert b"queries a second" in path.read_bytes()


@pytest.mark.parametrize("as_object", [False, True])
def test_a_stage_that_scales_begins_with_the_plans_replicas(as_object: bool) -> None:
    from ray.serve.config import AutoscalingConfig

    given = {"min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 5}
    scaling = AutoscalingConfig(**given) if as_object else given
    application = serve.pipeline(text=Text.options(autoscaling_config=scaling))
    made = plan(application, SLO(latency_s=0.1, rate_per_s=2000), {"text": PROFILES["text"]})
    options = made.application.spec.stages["text"].serve_options
    got: Any = options["autoscaling_config"]
    fields = vars(got) if as_object else got
    assert fields["initial_replicas"] == fields["max_replicas"] == made.replicas["text"] > 2
    assert (fields["min_replicas"], fields["target_ongoing_requests"]) == (1, 5)
    assert "num_replicas" not in options


@pytest.mark.parametrize(
    ("profiles", "costs", "why"),
    [
        ({"text": PROFILES["text"]}, {}, r"stage cross has no profile among those of \['text'\]"),
        ({**PROFILES, "vision": PROFILES["text"]}, {}, r"profiles\['vision'\] is of no stage"),
        (PROFILES, {"vision": 1.0}, r"costs\['vision'\] is of no stage"),
        (PROFILES, {"text": 0.0}, r"costs\['text'\]=0.0"),
    ],
)
def test_names_and_costs_that_do_not_fit_are_named(
    profiles: dict[str, Any], costs: dict[str, float], why: str
) -> None:
    application = serve.pipeline(text=Text, cross=Text.after("text"))
    with pytest.raises(ValueError, match=why):
        plan(application, OBJECTIVE, profiles, costs=costs)


def test_profiles_are_by_name() -> None:
    wrong: Any = [*PROFILES.values()]
    application = serve.pipeline(text=Text, cross=Text.after("text"))
    with pytest.raises(TypeError, match=r"by the names of the stages, \['text', 'cross'\]") as told:
        plan(application, OBJECTIVE, wrong)
    assert len(str(told.value)) < 300, "and not all that they measured"


def test_a_plan_is_of_a_pipeline() -> None:
    vote: Any = serve.ensemble(Text)
    with pytest.raises(TypeError, match="what pipeline"):
        plan(vote, OBJECTIVE, PROFILES)


def test_a_plan_is_placed_on_slices_that_are_as_fast() -> None:
    made = make_plan()
    longest_s = made.graph.stages["text"].profile.quantile_s(made.caps["text"], 0.95)
    slow = line(2 * longest_s, 0.001)
    half = line(0.019, 0.002)
    components = made.components(
        {"text": {"a30": PROFILES["text"], "half": half, "slow": slow}, "cross": PROFILES_ON_HALF}
    )
    text = {each.name: each for each in components}["text"]
    assert text.fits.keys() == {"a30", "half"}
    assert text.fits["a30"].rate_per_s == pytest.approx(
        PROFILES["text"].throughput_per_s(made.caps["text"])
    )
    cap = made.caps["text"]
    assert text.fits["half"] == serve.Fit(half.throughput_per_s(cap), half.memory_bytes(cap))
    kind = serve.whole_gpu("a30", memory_bytes=64 << 30)
    halves = serve.whole_gpu("half", memory_bytes=64 << 30)
    gpus = [serve.Device("gpu0", kind, "node0"), serve.Device("gpu1", halves, "node0")]
    assert serve.place(components, gpus).replicas == {"cross": {"half": 1}, "text": {"a30": 1}}


def test_a_stage_that_no_slice_is_fast_enough_for_is_named() -> None:
    with pytest.raises(ValueError, match="stage text is on no slice as fast as planned"):
        make_plan().components({"text": {"a30": line(9.0, 1.0)}, "cross": PROFILES_ON_HALF})


def test_a_plan_scales_its_stages_by_its_figures() -> None:
    application = serve.pipeline(
        text=Text.options(num_replicas=9), cross=Text.after("text"), deadline_s=9.0
    )
    made = plan(application, OBJECTIVE, PROFILES)
    most = max(made.replicas.values()) + 4
    spec = made.scale(max_replicas=most, prepared=1, hold_s=5).spec
    assert (spec.latency_s, spec.deadline_s) == (0.2, 9.0)
    shares_s = []
    for name, each in spec.stages.items():
        assert each.max_batch == made.caps[name]
        assert "num_replicas" not in each.serve_options
        assert each.starts_parked
        scaling: Any = each.serve_options["autoscaling_config"]
        assert (scaling.min_replicas, scaling.max_replicas) == (1, most)
        assert scaling.initial_replicas == made.replicas[name] + 1
        options = scaling.policy.policy_kwargs
        assert options["capacity_per_s"] == PROFILES[name].throughput_per_s(made.caps[name])
        assert options["service_s"] == PROFILES[name].mean_s(made.caps[name])
        assert (options["miss"], options["prepared"], options["hold_s"]) == (0.005, 1, 5)
        assert options["latency_s"] > 2 * options["service_s"] * 0.99
        assert each.budget_s == options["latency_s"]
        shares_s.append(options["latency_s"])
    assert sum(shares_s) == pytest.approx(0.2 - 4 * made.graph.hop_s)


def test_a_plan_that_is_larger_than_it_may_scale_is_refused() -> None:
    made = make_plan()
    least = max(made.replicas.values())
    with pytest.raises(ValueError, match=rf"max_replicas={least - 1} is less than the {least} re"):
        made.scale(max_replicas=least - 1)
    with pytest.raises(TypeError, match="holds"):
        made.scale(max_replicas=least, holds=3)
