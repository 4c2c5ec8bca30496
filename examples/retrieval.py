"""A text and an image find documents: a pipeline in which two stages feed a third.

The vision stage hands on many megabytes for each query. With --kill one of its two replicas is
killed under load: no query may be lost, and all answers are those of the run before.
"""

import argparse

import numpy as np
from ray import serve
from support import encoders
from support.load import load
from support.serving import LIGHT, kill, local_serve

from hoplite_ray.serve import pipeline, stage

CALLERS, FOUND = 4, 10  # FOUND: documents for each query
FEATURES_MB = encoders.PATCHES * encoders.PATCH_WIDTH * 4 / 1e6


@stage(ray_actor_options=LIGHT)
class Text(encoders.TextEncoder):
    def __call__(self, queries: list[dict]) -> list[np.ndarray]:
        return [self.encode(query["words"]) for query in queries]


@stage(num_replicas=2, max_batch=4, ray_actor_options=LIGHT)
class Vision(encoders.ImageEncoder):
    def __call__(self, queries: list[dict]) -> list[np.ndarray]:
        return [self.encode(query["patches"]) for query in queries]


@stage(ray_actor_options=LIGHT)
class Cross(encoders.CrossAttention):
    def __call__(self, text: list[np.ndarray], vision: list[np.ndarray]) -> list[np.ndarray]:
        return [self.attend(*each) for each in zip(text, vision, strict=True)]


@stage(ray_actor_options=LIGHT)
class Search(encoders.Documents):
    def __call__(self, queries: list[np.ndarray]) -> list[np.ndarray]:
        return [self.best(words, FOUND) for words in queries]


def main(handoff_mb: float, documents: int, queries: int, kill_one: bool) -> int:
    copies = max(1, round(handoff_mb / FEATURES_MB))
    print(f"vision hands on {copies * FEATURES_MB:.1f} MB for each query", flush=True)
    app = pipeline(
        text=Text,
        vision=Vision.bind(copies),
        cross=Cross.after("text", "vision"),
        search=Search.bind(documents).after("cross"),
    )
    asked = [*map(encoders.query, range(queries))]
    with local_serve():
        handle = serve.run(app, route_prefix=None)
        load(handle, asked[:CALLERS], callers=CALLERS)  # the first ones open the edges
        before = after = load(handle, asked, callers=CALLERS)
        print(before, flush=True)
        if kill_one:
            after = load(handle, asked, callers=CALLERS, midway=lambda: kill("vision", 1))
            print(f"{after}, with one of two vision replicas killed", flush=True)
    lost, differ = len({*before.lost, *after.lost}), after.differ(before)
    print(f"{lost} queries were lost; {differ} had a different answer")
    return 1 if lost or differ else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--handoff-mb", type=float, default=16.0, help="(default: 16)")
    parser.add_argument("--documents", type=int, default=5000, help="(default: 5000)")
    parser.add_argument("--queries", type=int, default=200, help="of each run (default: 200)")
    parser.add_argument("--kill", action="store_true", help="a vision replica, with kill -9")
    parser.add_argument("--toy", action="store_true", help="a few small queries, with --kill")
    options = parser.parse_args()
    if options.toy:
        print("toy sizes: they prove only that it runs")
        options.handoff_mb, options.documents, options.queries, options.kill = 1.0, 200, 24, True
    raise SystemExit(main(options.handoff_mb, options.documents, options.queries, options.kill))
