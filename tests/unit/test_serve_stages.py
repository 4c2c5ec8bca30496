"""What a stage and a pipeline may be, told where they are written; and what goes over an edge."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.serve import Application
from ray.serve.config import AutoscalingConfig

from hoplite_ray.serve import ensemble, metrics, pipeline, query_ids, query_snapshots, stage
from hoplite_ray.serve.edge.failures import pack_failure
from hoplite_ray.serve.edge.frames import Message, pack_frame, unpack_frame
from hoplite_ray.serve.graph.ensemble import EnsembleIngress
from hoplite_ray.serve.graph.http import as_json
from hoplite_ray.serve.graph.ingress import Ingress
from hoplite_ray.serve.graph.pipeline import topological_order
from hoplite_ray.serve.stages.compute import Compute, Run


def empty(size_bytes: int) -> np.ndarray:
    return np.empty(size_bytes, np.uint8)


@stage
class One:
    def __call__(self, queries: list[Any]) -> list[Any]:
        return queries


class Generator:
    def __call__(self, queries: list[Any]) -> Any:
        yield from queries


class Inherited(Generator):
    pass


class Nothing:
    pass


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (Generator, "stage Generator is a generator; return a list"),
        (Inherited, "stage Inherited is a generator"),
        (Nothing, "stage Nothing has no __call__"),
        (print, "@stage is for classes"),
    ],
)
def test_what_is_no_stage_is_told_at_its_decoration(what: Any, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        stage(what)


@pytest.mark.parametrize("options", [{"max_batch": 0}, {"max_batch": 2.5}, {"late": "never"}])
def test_options_that_can_not_be_are_told(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"max_batch=(0|2.5) must be|late='never' is none of"):
        stage(**options)(type(One.user_class.__name__, (One.user_class,), {}))


@pytest.mark.parametrize("make", [dict, AutoscalingConfig])
def test_a_stage_that_would_sleep_for_ever_is_told(make: Any) -> None:
    why = "stage One.*: min_replicas=0 in autoscaling_config .*; let it be 1 or more"
    with pytest.raises(ValueError, match=why):
        stage(autoscaling_config=make(min_replicas=0, initial_replicas=1))(One.user_class)
    pipeline(a=stage(autoscaling_config=make(max_replicas=2))(One.user_class))


class Table(dict[str, int]):
    def __call__(self, queries: list[Any]) -> list[Any]:
        return [self.get(query) for query in queries]


def test_a_class_whose_constructor_has_no_signature_is_a_stage() -> None:
    assert pipeline(a=stage(Table).bind({"a": 1}))


def test_a_stage_is_had_with_other_options_and_keeps_the_rest() -> None:
    wide = stage(max_batch=8, late="drop", num_replicas=2)(Two).after("a", "b")
    wider = wide.options(max_batch=16, num_replicas=3)
    assert (wider.max_batch, wider.late, wider.inputs) == (16, wide.late, ("a", "b"))
    assert wider.serve_options == {"num_replicas": 3}
    assert wider.options(late="serve").late.value == "serve"
    assert (wide.max_batch, wide.serve_options) == (8, {"num_replicas": 2}), "it is another one"
    with pytest.raises(TypeError, match=r"num_replica is no option .* is num_replicas meant"):
        wide.options(num_replica=2)
    with pytest.raises(ValueError, match="max_batch=0 must be"):
        wide.options(max_batch=0)


GRAPHS: dict[str, tuple[dict[str, Any], str]] = {
    "empty": ({}, "at least one stage"),
    "no stage": ({"a": 3}, "a=3 is no stage; decorate"),
    "unknown": ({"a": One.after("b")}, r"stage a is after 'b', which is none of \['a'\]"),
    "circle": (
        {"a": One, "b": One.after("a", "c"), "c": One.after("b")},
        r"\['b', 'c'\] wait for themselves",
    ),
    "two ends": (
        {"a": One, "b": One.after("a"), "c": One.after("a")},
        r"\['b', 'c'\] are all last",
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_no_graph_is_told(name: str) -> None:
    stages, why = GRAPHS[name]
    with pytest.raises(ValueError, match=why):
        pipeline(**stages)


def test_stages_are_ordered_by_their_inputs() -> None:
    stages = {"d": One.after("b", "c"), "c": One.after("a"), "b": One.after("a"), "a": One}
    assert topological_order(stages) == ["a", "c", "b", "d"]


def names(application: Any) -> set[str]:
    """The deployments of an application, its ingress among them."""
    found, left = set(), [application._bound_deployment]
    while left:
        each = left.pop()
        found.add(each.name)
        for argument in (*each.init_args, *each.init_kwargs.values()):
            inner = argument.values() if isinstance(argument, dict) else [argument]
            left += [node._bound_deployment for node in inner if isinstance(node, Application)]
    return found


def test_a_mapping_may_use_names_that_are_arguments() -> None:
    taken = ("edges", "replicas", "deadline_s", "stages")
    chain = {name: One.after(taken[at - 1]) if at else One for at, name in enumerate(taken)}
    assert names(pipeline(chain)) == {*taken, "ingress"}
    assert names(pipeline({"edges": One}, last=One.after("edges"))) == {"edges", "last", "ingress"}
    members = names(ensemble(One, {"quorum": One, "combine": One}, other=One))
    assert members == {"model0", "quorum", "combine", "other", "ingress"}


def deadline_s(application: Any) -> float:
    """The deadline that an application's ingress is given, in seconds."""
    (found,) = (each for each in application._bound_deployment.init_args if type(each) is float)
    return found


@pytest.mark.parametrize("make", [partial(pipeline, a=One), partial(ensemble, One)])
def test_deadlines_are_in_seconds_and_their_old_name_still_counts(make: Any) -> None:
    assert deadline_s(make(deadline_s=2.5)) == 2.5
    with pytest.warns(DeprecationWarning, match="give deadline_s, in seconds") as warned:
        assert deadline_s(make(deadline_ms=2500.0)) == 2.5
    assert warned[0].filename == __file__, "it points at the caller"
    with (
        pytest.warns(DeprecationWarning),
        pytest.raises(ValueError, match=r"deadline_ms=0 must be .* give milliseconds"),
    ):
        make(deadline_ms=0)


@pytest.mark.parametrize(
    ("asked", "limit_s"),
    [
        ({}, 4.0),
        ({"deadline_s": 0.5}, 0.5),
        ({"deadline_s": 90.0}, 4.0),
        ({"deadline_ms": 500}, 0.5),
        ({"deadline_ms": 90_000}, 4.0),
    ],
)
@pytest.mark.parametrize("kind", [Ingress, EnsembleIngress])
@pytest.mark.filterwarnings("ignore:deadline_ms:DeprecationWarning")
def test_a_query_has_its_own_deadline_or_the_applications(
    kind: Any, asked: dict[str, float], limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("count", "observe_query"):
        monkeypatch.setattr(metrics, name, lambda *_, **__: None)

    class Asked(Exception):
        """With the limit that was asked for."""

    async def refuse(*args: Any) -> Any:
        raise Asked(args[-1])

    ingress = kind.__new__(kind)
    state = {"_deadline_s": 4.0, "_handles": {"a": None}, "_outlets": {"a": None}, "_quorum": 1}
    asked_as = {"_latency_s": None, "_ask_by_edges": refuse, "_poll_members": refuse}
    vars(ingress).update(state, _combine="mean", **asked_as)
    with pytest.raises(Asked) as raised:
        asyncio.run(ingress.ask("query", **asked))
    assert raised.value.args == (limit_s,)
    ingress._outlets = {}


def test_other_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="edges='tcp' is none of"):
        pipeline(edges="tcp", a=One)
    with pytest.raises(ValueError, match="edges='tcp' is none of"):
        ensemble(One, edges="tcp")
    with pytest.raises(ValueError, match="is no stage that gets the query itself"):
        ensemble(One, One.after("a"))
    with pytest.raises(ValueError, match="quorum=2 must be 1 to 1"):
        ensemble(One, quorum=2)
    with pytest.raises(ValueError, match="name each stage once"):
        One.after("a", "a")
    with pytest.raises(TypeError, match=r"name stages by themselves, as in after\('text'\)"):
        One.after(text="text")
    with pytest.raises(TypeError, match=r"pipeline\(text=Text\), not pipeline\(Text\)"):
        pipeline(One)
    with pytest.raises(TypeError, match=r"name is given by the pipeline .*; leave it out"):
        stage(name="two")(One.user_class)
    with pytest.raises(TypeError, match="request_router_config is given by the pipeline"):
        stage(request_router_config={})(One.user_class)
    with pytest.raises(TypeError, match=r"num_replica is no option .* is num_replicas meant"):
        stage(num_replica=2)(type("Two", (One.user_class,), {}))


def test_what_may_kill_starts_when_its_callers_have_been_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "observe", lambda *_, **__: None)

    async def run() -> None:
        sent = (asyncio.Event(), asyncio.Event())
        done: list[Any] = []
        tasks: list[asyncio.Task[None]] = []

        def spawn(work: Any) -> None:
            tasks.append(asyncio.create_task(work))

        compute: Any = SimpleNamespace(
            _start_batch=done.append,
            _spawn=spawn,
            _batches=SimpleNamespace(is_busy=True),
            _take_batch=lambda: done.append("the next batch"),
        )
        compute._start_after_notice = partial(Compute._start_after_notice, compute)

        def alone() -> Run:
            to_notify = tuple(lambda _, each=each: each for each in sent)
            return Run("id", 0, asyncio.get_running_loop().create_future(), 0.0, to_notify)

        wanted, taken_back = alone(), alone()
        Compute._begin_batch(compute, [wanted])
        Compute._begin_batch(compute, [taken_back])
        taken_back.answer.cancel()
        for each in sent:
            assert not any(task.done() for task in tasks) and not done
            each.set()
        await asyncio.gather(*tasks)
        assert done == [[wanted], "the next batch"] and not compute._batches.is_busy
        other = Run("id", 0, wanted.answer, 0.0)
        Compute._begin_batch(compute, [other])
        assert done[-1] == [other], "at once"

    asyncio.run(run())


VALUES = st.none() | st.integers() | st.text() | st.lists(st.binary(), max_size=3)


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2**64 - 1), VALUES), min_size=1, max_size=5
    )
)
def test_messages_of_a_frame_come_out_as_they_went_in(said: list[tuple[int, int, Any]]) -> None:
    heard = unpack_frame(pack_frame([Message.pack(*each) for each in said], empty))
    assert [(each.kind, each.number, each.value()) for each in heard] == said


def test_arrays_come_out_as_views_of_what_was_received() -> None:
    arrays = [np.arange(size, dtype=np.float64) for size in (0, 1, 1000)]
    messages = [Message.pack(0, 1, ("a", arrays)), Message.pack(0, 2, arrays[2])]
    frame = pack_frame(messages, empty)
    first, second = (message.value() for message in unpack_frame(frame))
    assert first[0] == "a"
    for sent, received in zip([*arrays, arrays[2]], [*first[1], second], strict=True):
        np.testing.assert_array_equal(received, sent)
        assert received.ctypes.data % 64 == frame.ctypes.data % 64 or not received.size
    assert np.shares_memory(second, frame)


def test_an_error_that_can_not_be_pickled_goes_as_its_text() -> None:
    class Stubborn(Exception):
        def __reduce__(self) -> Any:
            raise TypeError("no")

    (told,) = unpack_frame(pack_frame([pack_failure(2, 7, Stubborn("why"))], empty))
    assert (told.number, str(told.value())) == (7, "Stubborn: why")


JSON: list[tuple[Any, Any]] = [
    ({"a": np.arange(2), 1: (np.float32(0.5), "b")}, {"a": [0, 1], "1": [0.5, "b"]}),
    (np.array([1.5, np.nan]), [1.5, None]),
    ({"a": float("inf"), "b": np.float64("nan")}, {"a": None, "b": None}),
    (np.arange(6).reshape(2, 3).T, [[0, 3], [1, 4], [2, 5]]),
    ([1 << 70, np.array(7), np.array([True])], [1 << 70, 7, [True]]),
    (np.array(["a", "b"]), ["a", "b"]),
    (json.loads("[" * 400 + "]" * 400), json.loads("[" * 400 + "]" * 400)),
]


@pytest.mark.parametrize(("answer", "told"), JSON)
def test_answers_are_json_with_arrays_as_lists(answer: Any, told: Any) -> None:
    assert json.loads(as_json(answer)) == told


class Named:
    def __init__(self, path: str) -> None: ...

    def __call__(self, queries: list[Any]) -> list[Any]:
        return queries


class Two:
    def __call__(self, a: list[Any], b: list[Any]) -> list[Any]:
        return a


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (One, "One is a stage, .* One.bind"),
        (lambda: pipeline(a=stage(Two)), r"a: Two.__call__ is to take a list; .*'b'"),
        (
            lambda: pipeline(a=One, x=One, j=stage(Two).after("a", "x")),
            "j: Two.__call__ is to take one list for each input, as keywords: a, x",
        ),
        (lambda: pipeline(a=One, deadline_s=0), "deadline_s=0 must be"),
        (lambda: pipeline(a=One, deadline_s="5"), "deadline_s='5' must be"),
        (lambda: ensemble(One, replicas=0), "replicas=0, of the ingress"),
        (lambda: ensemble([One, One]), r"ensemble\(\*models\)"),
        (query_ids, "while it runs"),
        (query_snapshots, "while it runs"),
        (lambda: pipeline(ingress=One), "no stage can be called 'ingress'"),
        (lambda: One.after(One), "name a stage by its keyword"),
        (lambda: ensemble(), "at least one model"),
        (lambda: pipeline(a=stage(Named)), "stage a: Named.bind.* missing a required argument"),
        (lambda: ensemble(One, model0=One), "model0 is what one without a name is called"),
        (lambda: ensemble(One, {"model0": One}), "model0 is what one without a name is called"),
        (lambda: ensemble({"a": One}, a=One), "a is in the mapping and a keyword"),
        (lambda: pipeline({"a": One}, a=One), "a is in the mapping and a keyword"),
        (lambda: pipeline({1: One}), "1 names a stage, and is to be text"),
        (lambda: pipeline({}), "at least one stage"),
        (lambda: ensemble(One, combin="mean"), "combin='mean' is no stage"),
        (lambda: ensemble(ingress=One), "no member can be called 'ingress'"),
        (lambda: pipeline(a=One, deadline_s=None), "deadline_s=None must be"),
        (lambda: ensemble(One, quorum="1"), "quorum='1' is to be a whole number"),
        (lambda: ensemble(One, quorum=1.0), "quorum=1.0 is to be a whole number"),
        (lambda: ensemble(One, combine=3), "combine=3 is none of .* give one of these"),
        (lambda: ensemble(One, deadline_s=True), "deadline_s=True must be .* give seconds"),
        (lambda: ensemble(One, deadline_s=float("inf")), "deadline_s=inf must be .* finite"),
        (lambda: ensemble(One.bind(1)), "stage model0: One.bind.* too many"),
    ],
)
def test_what_can_not_be_started_is_told_before(make: Any, why: str) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError), match=why):
        make()


PROGRAM = """
import json
from hoplite_ray.serve.edge.frames import Message
class Own:
    def __init__(self, number): self.number = number
    def twice(self): return 2 * self.number
values = [Own(4), lambda: 9], [Own(4)]
print(json.dumps([bytes(Message.pack(0, 0, each).parts[0]).hex() for each in values]))
"""


def test_classes_of_a_program_and_functions_arrive_where_they_can_not_be_imported() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, check=True)
    both, only_own = map(bytes.fromhex, json.loads(ran.stdout))
    own, function = Message(0, 0, (both,)).value()
    assert (own.twice(), function()) == (8, 9)
    (own,) = Message(0, 0, (only_own,)).value()
    assert own.twice() == 8
