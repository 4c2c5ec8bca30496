"""A question and a picture find passages: Vortex's retrieval pipeline in small, with real models.

wordllama encodes the text, EfficientNet-Lite0 the picture. A projection that is learnt here takes
both to token vectors, by which FAISS and MaxSim find passages. Source: Vortex; PreFLMR.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from support.models.facts import facts, paragraphs
from support.models.pictures import PictureEncoder, Projection, draw_queries, learn
from support.models.promises import keep_promise, parse_options
from support.models.words import Passages, Words
from support.serving import LIGHT, local_serve

from hoplite_ray.serve import SLO, stage

FOUND = 5  # passages for each query
BESIDE, TOY_BESIDE = 1000, 50  # paragraphs of Python's documentation, beside the facts
FIRST_MIN, TOY_FIRST_MIN = 0.8, 0.6  # of the queries, whose right passage is to be the first
QUERIES, TOY_QUERIES = 240, 24


@stage(ray_actor_options=LIGHT)
class Text(Words):
    def __call__(self, queries: list[dict]) -> list[np.ndarray]:
        return [self.encode(query["text"]) for query in queries]


@stage(ray_actor_options=LIGHT)
class Vision(PictureEncoder):
    def __call__(self, queries: list[dict]) -> list[np.ndarray]:
        return self.encode([query["picture"] for query in queries])


@stage(ray_actor_options=LIGHT)
class Cross:
    def __init__(self, path: Path) -> None:
        self.projection = Projection.load(path)

    def __call__(self, text: list[np.ndarray], vision: list[np.ndarray]) -> list[np.ndarray]:
        return [self.projection.attend(*each) for each in zip(text, vision, strict=True)]


@stage(ray_actor_options=LIGHT)
class Search(Passages):
    def __call__(self, queries: list[np.ndarray]) -> list[np.ndarray]:
        return [self.find(query, FOUND) for query in queries]


def main(options: argparse.Namespace) -> int:
    words, passages = Words(), [*facts(), *paragraphs(TOY_BESIDE if options.toy else BESIDE)]
    projection = learn(PictureEncoder(), words)
    queries, meant = draw_queries(TOY_QUERIES if options.toy else QUERIES)
    with TemporaryDirectory() as folder, local_serve():
        projection.save(path := Path(folder) / "projection.npz")
        stages = {
            "text": Text,
            "vision": Vision,
            "cross": Cross.bind(path).after("text", "vision"),
            "search": Search.bind(passages).after("cross"),
        }
        asked = keep_promise(stages, queries, options)
    first, among = (
        asked.count(meant, lambda answer, each, top=top: each in answer[:top]) for top in (1, FOUND)
    )
    alone = Passages(passages)
    blind = np.mean([alone.find(words.encode(q["text"]), 1) for q in queries] == meant[:, None])
    print(f"the right one of {len(passages)} passages is first for {first:.1%} of the queries,")
    print(f"among {FOUND} for {among:.1%}; without the picture it is first for {blind:.1%}")
    return 0 if first >= (TOY_FIRST_MIN if options.toy else FIRST_MIN) else 1


if __name__ == "__main__":
    slo, toy = (SLO(latency_s=s, rate_per_s=rate, miss=0.02) for s, rate in ((0.15, 15), (5, 2)))
    raise SystemExit(main(parse_options(__doc__, slo, toy)))
