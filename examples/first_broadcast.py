"""The first broadcast: parameters go to eight tasks, and the first four gradients are added up."""

import numpy as np
import ray

import hoplite_ray as hop


@ray.remote
def gradient(params: hop.Array, seed: int) -> hop.Array:
    return hop.array(np.asarray(params) + seed)


if __name__ == "__main__":
    hop.init(arena_bytes=1 << 30)  # bad options raise here
    params = hop.put(np.zeros(1_000_000, np.float32))  # an ordinary ray.ObjectRef
    grads = [gradient.remote(params, seed) for seed in range(8)]  # ordinary tasks
    total = hop.reduce(grads, op="sum", count=4)  # an ObjectRef: the first 4 that finish
    print(hop.get(total), hop.sources(total))  # the array; which four refs went in
