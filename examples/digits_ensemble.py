"""Eight kinds of classifiers vote on handwritten digits, while more and more of them are killed.

The program checks that the living members vote exactly as they do without Serve. Serve restarts the
killed members, and in the last round all of them vote again.
"""

import argparse
import time

import numpy as np
from ray import serve
from rich.console import Console
from rich.table import Table
from support.classifiers import KINDS, digits, trained
from support.serving import LIGHT, kill, local_serve

from hoplite_ray.serve import ensemble, stage

QUORUM, BATCH, LIMIT_S = 2, 64, 120.0  # BATCH: images in a query


@stage(ray_actor_options=LIGHT)
class Member:
    def __init__(self, number: int) -> None:
        self.model = trained(number)

    def __call__(self, queries: list[np.ndarray]) -> list[np.ndarray]:
        return [self.model.predict(images) for images in queries]


def answered(handle, images: np.ndarray, dead: set[str]) -> np.ndarray:
    """Return the votes without the `dead` members; kills these again when Serve restarts them."""
    end_s = time.monotonic() + LIMIT_S
    while time.monotonic() < end_s:
        for name in dead:
            kill(name)
        asked = [handle.remote(batch) for batch in np.array_split(images, -(-len(images) // BATCH))]
        answers = [each.result(timeout_s=LIMIT_S) for each in asked]
        if all(set(answer.missing) == dead for answer in answers):
            return np.concatenate([answer.value for answer in answers])
    raise SystemExit(f"missing are {answers[-1].missing}; {sorted(dead)} should be")


def main(members: int, dead_max: int) -> int:
    _, images, _, truth = digits()
    alone = np.array([trained(number).predict(images) for number in range(members)])
    table = Table("dead", "the last one", "accuracy", "without Serve", "")
    wrong = 0
    with local_serve():
        models = [Member.bind(number) for number in range(members)]
        handle = serve.run(ensemble(*models, quorum=QUORUM), route_prefix=None)
        for dead in [*range(dead_max + 1), 0]:  # how many of the first ones
            answers = answered(handle, images, {f"model{number}" for number in range(dead)})
            expected = np.array([np.bincount(votes).argmax() for votes in alone[dead:].T])
            differ = int((answers != expected).sum())
            wrong += differ
            last = list(KINDS)[dead - 1] if dead else "all are back" if table.rows else "-"
            accuracies = [f"{(each == truth).mean():.4f}" for each in (answers, expected)]
            table.add_row(str(dead), last, *accuracies, f"{differ} of {len(truth)} differ")
    Console().print(table)
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--toy", action="store_true", help="four classifiers, one of them killed")
    options = parser.parse_args()
    if options.toy:
        print("toy sizes: they prove only that it runs")
    members, dead_max = (4, 1) if options.toy else (len(KINDS), len(KINDS) - QUORUM)
    raise SystemExit(main(members, dead_max))
