"""The eight image classifiers of Hoplite's serving experiment vote, and one of them is killed.

All members get every query. Their weights are random, so the votes mean nothing. The work is that
of the experiment; with --full, so are the bytes that travel. Source: Hoplite 5.4 and 5.5.
"""

import argparse
import time
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
from ray import serve
from support.serving import LIGHT, kill, local_serve

from hoplite_ray.serve import ensemble, stage

MODELS = "alexnet resnet34 efficientnet_b1 efficientnet_b2 mobilenet_v2".split()
MODELS += "shufflenet_v2_x0_5 shufflenet_v2_x1_0 squeezenet1_1".split()
VICTIM, LIMIT_S = MODELS.index("resnet34"), 600.0  # LIMIT_S: for an answer


@stage(ray_actor_options=LIGHT)
class Classifier:
    def __init__(self, name: str) -> None:
        import torch
        from torchvision.models import get_model

        torch.set_num_threads(1)  # the models share the cores
        torch.manual_seed(0)  # a restarted replica has the same weights
        self.torch, self.model = torch, get_model(name, weights=None).eval()

    def __call__(self, queries: list[np.ndarray]) -> list[np.ndarray]:
        with self.torch.inference_mode():
            return [self.model(self.torch.tensor(each)).argmax(1).numpy() for each in queries]


def main(images: int, side: int, queries: int) -> int:
    query = np.random.default_rng(0).random((images, 3, side, side), np.float32)
    print(f"a query is {images} images of {side} x {side}: {query.nbytes / 1e6:.1f} MB", flush=True)
    last = []  # of each call of `ask`, what the last vote came to

    def ask(title: str, is_enough: Callable) -> None:
        answers, seconds = [], []
        while not is_enough(answers):
            began_s = time.perf_counter()
            answers.append(handle.remote(query).result(timeout_s=LIMIT_S))
            seconds.append(time.perf_counter() - began_s)
        last.append(answers[-1].value)
        median_ms, most_ms = 1e3 * np.median(seconds), 1e3 * max(seconds)
        times = f"median {median_ms:.0f} ms, longest {most_ms:.0f} ms"
        print(f"{title}: {len(answers)} answers, {times}", flush=True)

    with local_serve():
        app = ensemble(*map(Classifier.bind, MODELS), quorum=5, deadline_s=LIMIT_S)
        handle = serve.run(app, route_prefix=None)
        ask("all eight live", lambda answers: len(answers) == queries)
        kill(f"model{VICTIM}")
        ask(
            f"{MODELS[VICTIM]} is killed, and returns",
            lambda answers: any(each.missing for each in answers) and not answers[-1].missing,
        )
        ask("all eight live", lambda answers: len(answers) == queries)
    return 0 if np.array_equal(last[0], last[-1]) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--full", action="store_true", help="64 images of 256 x 256, as there")
    parser.add_argument("--toy", action="store_true", help="two small images, and few queries")
    options = parser.parse_args()
    if options.toy:
        print("toy sizes: they prove only that it runs")
    if find_spec("torchvision") is None:
        print("torchvision is not installed; `pip install torchvision` installs it, and torch")
        raise SystemExit(0 if options.toy else 1)
    sizes = (2, 64, 3) if options.toy else (64, 256, 5) if options.full else (8, 128, 20)
    raise SystemExit(main(*sizes))
