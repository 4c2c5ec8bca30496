"""One trainer publishes weights; rollout workers come, die and go, and each has the newest ones."""

from __future__ import annotations

import argparse
import time

import numpy as np
import ray

import hoplite_ray as hop

CHANNEL = "policy"


@ray.remote(num_cpus=0)
class Trainer:
    def train(self, versions: int, mib: int, pause_s: float) -> None:
        weights = [np.zeros(mib << 16, np.float32) for _ in range(4)]  # a real one computes here
        for _ in range(versions):
            for layer in weights:
                layer += 1
            hop.publish(CHANNEL, weights)
            time.sleep(pause_s)
        hop.unpublish(CHANNEL)  # which ends the watches


@ray.remote(num_cpus=0)
class Rollout:
    def run(self) -> list[tuple[int, float]]:
        seen = []
        for update in hop.watch(CHANNEL):  # its bytes travel while the last version is in use
            assert all((layer == update.version).all() for layer in update.value)
            seen.append((update.version, time.time() - update.time_s))
        return seen


def main(options: argparse.Namespace) -> None:
    hop.init(arena_bytes=(options.mib * 5 << 20) + (64 << 20))
    workers = [Rollout.remote() for _ in range(options.rollouts)]
    running = {each.run.remote(): each for each in workers}
    training = Trainer.remote().train.remote(options.versions, options.mib, options.pause_s)
    kills, next_s = 0, time.monotonic() + options.kill_s
    while not ray.wait([training], timeout=0.1)[0]:
        if options.kill_s and time.monotonic() > next_s:
            dead, worker = next(iter(running.items()))
            ray.kill(worker)
            del running[dead]
            worker = Rollout.remote()  # it begins with the newest version
            running[worker.run.remote()] = worker
            kills, next_s = kills + 1, time.monotonic() + options.kill_s
    ray.get(training)
    ended, _ = ray.wait(list(running), num_returns=len(running), timeout=5)
    for seen in ray.get(ended):
        lag_ms = 1000 * float(np.median([lag for _, lag in seen]))
        print(f"versions {[version for version, _ in seen]}, median lag {lag_ms:.0f} ms")
    print(f"{kills} workers were killed and replaced")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=4)
    parser.add_argument("--versions", type=int, default=20)
    parser.add_argument("--mib", type=int, default=16, help="of weights")
    parser.add_argument("--pause-s", type=float, default=0.5, help="between two versions")
    parser.add_argument("--kill-s", type=float, default=2.0, help="between two kills; 0: none")
    parser.add_argument("--toy", action="store_true", help="three small versions, and no kills")
    asked = parser.parse_args()
    if asked.toy:
        asked.versions, asked.mib, asked.pause_s, asked.kill_s = 3, 1, 0.1, 0.0
    main(asked)
