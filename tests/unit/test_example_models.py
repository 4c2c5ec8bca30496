"""What the examples with real models are made of; parts that need a model run where it is."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoplite_ray import serve

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))  # as for the programs themselves
try:
    from support.models import facts, pictures, promises, speech, words
finally:
    sys.path.pop(0)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what they import
needs_models = pytest.mark.skipif(
    bool(promises.lacking()), reason="the extra models is not installed"
)


def test_the_extra_brings_what_the_programs_look_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=\[]", each)[0] for each in project["optional-dependencies"]["models"]}
    assert names == set(promises.PACKAGES.values())


def test_each_kind_has_nine_facts_that_differ() -> None:
    passages = facts.facts(rude=True)
    assert len(passages) == len(set(passages)) == 9 * (len(facts.KINDS) + 1)
    assert facts.facts() == passages[:-9]
    for kind in facts.KINDS:
        assert len(set(kind.texts)) == 3


def test_a_spoken_question_belongs_to_the_passage_that_begins_like_it() -> None:
    passages = facts.facts(rude=True)
    questions = facts.spoken_questions()
    assert len(questions) == len(facts.LEADS) * len(passages)
    for question, index in questions:
        thing_and_number = re.sub(f"^({'|'.join(facts.LEADS)}) ", "", question)
        assert passages[index].lower().startswith(f"{thing_and_number} is")


def test_paragraphs_are_the_same_each_time_and_differ() -> None:
    some = facts.paragraphs(50)
    assert some == facts.paragraphs(50)
    assert len(set(some)) == 50
    assert all(facts.SHORTEST <= len(each) <= facts.LONGEST for each in some)


def test_the_grammar_has_every_spoken_question() -> None:
    things = [kind.thing for kind in (*facts.KINDS, facts.INSULTS)]
    grammar = speech.write_grammar(facts.LEADS, things, facts.NUMBERS)
    rules = dict(re.findall(r"^<(\w+)> = (.*);$", grammar, re.M))
    choices = {name: set(words.split(" | ")) for name, words in rules.items()}
    for question, _ in facts.spoken_questions():
        parts = re.fullmatch(r"(.*) (\w+) number (\w+)", question)
        assert parts
        lead, thing, number = parts.groups()
        assert lead in choices["lead"]
        assert thing in choices["thing"]
        assert number in choices["number"]


@given(st.integers(2, 12), st.integers(1, 12), st.floats(1e-3, 1.0), st.integers(0, 1000))
def test_ridge_is_where_the_penalised_error_is_least(
    rows: int, width: int, stiffness: float, seed: int
) -> None:
    """The gradient of the sum is zero there, for more rows than unknowns and for fewer."""
    rng = np.random.default_rng(seed)
    inputs, outputs = rng.standard_normal((rows, width)), rng.standard_normal((rows, 3))
    found = words.ridge(inputs, outputs, stiffness).astype(np.float64)
    all_inputs = words.with_one(inputs)
    penalty = stiffness * np.square(all_inputs).sum(axis=1).mean()
    gradient = all_inputs.T @ (all_inputs @ found - outputs) + penalty * found
    assert np.abs(gradient).max() < 1e-4 * (1 + np.abs(all_inputs).max() ** 2)


def test_a_word_is_attended_to_by_rows_like_it() -> None:
    text = np.eye(4, 8, dtype=np.float32)
    alike = pictures.attend(20 * text[2:3], text)
    assert alike.argmax() == 2
    assert alike.sum() == pytest.approx(1.0)  # a mean of the words
    assert np.allclose(pictures.attend(np.zeros((3, 8), np.float32), text)[:4], 0.25)


def test_the_parts_of_a_look_add_up_and_a_file_keeps_the_projection(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = pictures.PATCHES * pictures.CHANNELS + 1
    made = pictures.Projection(
        rng.standard_normal((rows, words.WIDTH)).astype(np.float32) / 100,
        rng.standard_normal((2 * words.WIDTH + 1, words.WIDTH)).astype(np.float32) / 100,
    )
    patches = rng.standard_normal((pictures.PATCHES, pictures.CHANNELS)).astype(np.float32)
    seen, parts = made.look(patches)
    assert np.allclose(seen, words.with_one(patches.reshape(-1)) @ made.patches, atol=1e-3)
    assert np.allclose(parts.sum(axis=0) + made.patches[-1], seen, atol=1e-4)
    made.save(tmp_path / "projection.npz")
    read = pictures.Projection.load(tmp_path / "projection.npz")
    text = rng.standard_normal((5, words.WIDTH)).astype(np.float32)
    query = read.attend(text, patches)
    assert np.array_equal(query, made.attend(text, patches))
    assert np.array_equal(query[:5], text)
    assert query.shape == (7, words.WIDTH)


class Doubles:
    def __call__(self, queries: list[Any]) -> list[Any]:
        return [2 * each for each in queries]


class Adds:
    def __init__(self, more: int) -> None:
        self._more = more

    def __call__(self, one: list[Any], two: list[Any]) -> list[Any]:
        return [a + b + self._more for a, b in zip(one, two, strict=True)]


def test_each_stage_gets_the_answers_of_those_before_it() -> None:
    doubles = serve.stage(Doubles)
    stages = {
        "one": doubles,
        "two": doubles.after("one"),
        "sum": serve.stage(Adds).bind(1).after("one", "two"),
        "last": doubles.after("sum"),
    }
    assert promises.find_inputs(stages, [1, 5]) == {
        "one": [1, 5],
        "two": [2, 10],
        "sum": [{"one": 2, "two": 4}, {"one": 10, "two": 20}],
        "last": [7, 31],
    }


@needs_models
def test_faiss_and_maxsim_find_what_comparing_all_finds() -> None:
    vectors = words.Words()
    texts = [*facts.facts(), *facts.paragraphs(100)]
    means = words.centre(np.stack([vectors.mean(each) for each in texts]))
    rows = [
        np.vstack([vectors.encode(each), mean]) for each, mean in zip(texts, means, strict=True)
    ]
    passages = words.Passages(texts)
    for kind in facts.KINDS:
        query = vectors.encode(kind.texts[0])
        every = [(words.unit(each) @ query.T).max(axis=0).sum() for each in rows]
        assert np.allclose(passages.score(query, np.arange(len(texts))), every, rtol=1e-4)
        assert passages.find(query, 1)[0] == int(np.argmax(every))


@needs_models
def test_the_filter_refuses_insults_and_no_fact() -> None:
    manners = words.Manners()
    refused = {text for text in facts.facts(rude=True) if manners.is_rude(text)}
    assert refused == set(facts.INSULTS.passages())


@needs_models
@pytest.mark.parametrize("voice", speech.VOICES, ids=lambda each: each[0])
def test_a_spoken_question_is_heard(voice: tuple[str, int, int]) -> None:
    things = [kind.thing for kind in (*facts.KINDS, facts.INSULTS)]
    listener, speaker = speech.Listener(facts.LEADS, things, facts.NUMBERS), speech.Voice()
    draw = np.random.default_rng(0)
    asked = [question for question, _ in facts.spoken_questions()[:: len(things)]]
    heard = [listener.hear(speaker.ask(each, voice, draw)) for each in asked]
    right = sum(one == other for one, other in zip(heard, asked, strict=True))
    assert right >= 0.8 * len(asked), [*zip(asked, heard, strict=True)]


@needs_models
def test_a_voice_says_more_for_a_longer_text_and_nothing_for_none() -> None:
    voice = speech.Voice()
    short, long = voice.speak("one"), voice.speak("one two three four five six seven")
    assert len(voice.speak("")) < len(short) < len(long)
