"""Spoken questions get spoken answers: Vortex's audio pipeline in small, with real models.

PocketSphinx hears a question, wordllama encodes it, FAISS finds a passage, a filter refuses rude
ones, and espeak-ng says the answer. Source: Vortex (AudioQuery).
"""

import argparse
from typing import Any

import numpy as np
from support.models.facts import INSULTS, KINDS, LEADS, NUMBERS, facts
from support.models.promises import keep_promise, parse_options
from support.models.speech import Listener, Voice, draw_questions
from support.models.words import Manners, Nearest, Words
from support.serving import LIGHT, local_serve

from hoplite_ray.serve import SLO, stage

REFUSAL = "I would rather not say that."
RIGHT_MIN, TOY_RIGHT_MIN = 0.8, 0.6  # of the answers
QUERIES, TOY_QUERIES = 120, 16


@stage(ray_actor_options=LIGHT)
class Hear(Listener):
    def __init__(self) -> None:
        super().__init__(LEADS, [kind.thing for kind in (*KINDS, INSULTS)], NUMBERS)

    def __call__(self, queries: list[np.ndarray]) -> list[str]:
        return [self.hear(samples) for samples in queries]


@stage(ray_actor_options=LIGHT)
class Embed(Words):
    def __call__(self, queries: list[str]) -> list[np.ndarray]:
        return [self.mean(text) for text in queries]


@stage(ray_actor_options=LIGHT)
class Search(Nearest):
    def __call__(self, queries: list[np.ndarray]) -> list[str]:
        return self.find(np.stack(queries))


@stage(ray_actor_options=LIGHT)
class Filter(Manners):
    def __call__(self, queries: list[str]) -> list[str]:
        return [REFUSAL if self.is_rude(text) else text for text in queries]


@stage(ray_actor_options=LIGHT)
class Speak(Voice):
    def __call__(self, queries: list[str]) -> list[tuple[str, np.ndarray]]:
        return [(text, self.speak(text)) for text in queries]


def make_stages(passages: list[str]) -> dict[str, Any]:
    return {
        "hear": Hear,
        "embed": Embed.after("hear"),
        "search": Search.bind(passages).after("embed"),
        "filter": Filter.after("search"),
        "speak": Speak.after("filter"),
    }


def main(options: argparse.Namespace) -> int:
    queries, meant = draw_questions(TOY_QUERIES if options.toy else QUERIES)
    passages, kept = facts(rude=True), len(facts())
    with local_serve():
        asked = keep_promise(make_stages(passages), queries, options)
    wanted = [passages[each] if each < kept else REFUSAL for each in meant]
    right = asked.count(wanted, lambda answer, text: answer[0] == text and len(answer[1]) > 0)
    print(f"{right:.1%} of {len(asked.answers)} answers were right, and said aloud")
    return 0 if right >= (TOY_RIGHT_MIN if options.toy else RIGHT_MIN) else 1


if __name__ == "__main__":
    slo, toy = SLO(latency_s=0.4, rate_per_s=6, miss=0.02), SLO(latency_s=5, rate_per_s=2, miss=0.1)
    raise SystemExit(main(parse_options(__doc__, slo, toy)))
