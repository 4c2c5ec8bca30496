"""The `hoplite-ray` command: what the nodes of a cluster are, have and lack.

    hoplite-ray status            list the nodes, their states, and how full their arenas are
    hoplite-ray objects           list the largest objects of all nodes
    hoplite-ray top               show nodes, transfers and trees, again and again
    hoplite-ray web               show the same as a page for a browser on this machine
    hoplite-ray trace OBJECT      show the life of one object over all nodes
    hoplite-ray drain NODE        move the objects that only one node holds to other nodes
    hoplite-ray options           list the options of the nodes, and which job has fixed them
    hoplite-ray doctor            check this machine and its cluster, and name the next steps
    hoplite-ray dashboard         print a Grafana dashboard of all metrics
    hoplite-ray alerts            print the alert rules of nodes and Serve pipelines

Exit status: 0 all is well, 1 it is not, 2 the command line is wrong. docs/reference/cli.md has
samples.

Start with `command_line`, which names the function of each command. Above the rooms stand
`commands` and `options`; the rooms are `checks`, `live` and `tracing`, and all of them use
`cluster`. The command uses `hoplite_ray.control`, `hoplite_ray.metrics`, the options and the
errors. It imports neither Ray nor the native module except in a check of the doctor: a process of
its own asks Ray.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hoplite_ray.cli.command_line import parser
from hoplite_ray.errors import HopliteError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parsed = parser().parse_args(arguments)
    if getattr(parsed, "secret_file", None) is not None and parsed.control is None:
        sys.stderr.write("hoplite-ray: --secret-file goes with --control\n")
        return 2
    try:
        return int(parsed.command(parsed))
    except HopliteError as error:
        sys.stderr.write(f"hoplite-ray: {error}\n")
        return 1
    except BrokenPipeError:  # the reader of our output has seen enough
        sys.stderr.close()
        return 1
