"""The tables of the page of results: which program measures each, how, and for how long.

The lines of a table are kept in docs/measured/NAME.jsonl. To add one, add an entry here; its
program prints figures (figures.py) with --json, and has a --toy.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the page."""

    name: str
    title: str
    question: str  # a sentence
    commands: tuple[str, ...]  # program and arguments, without "python" and "--json"
    about_s: int  # on two cores
    needs_root: bool = False  # for network namespaces
    needs_gpu: bool = False

    @property
    def programs(self) -> list[str]:
        """The programs' names, each once."""
        return list(dict.fromkeys(command.split()[0] for command in self.commands))


TABLES = (
    Table(
        "canonical",
        "Two numbers",
        "For maintainers: whether a change made the code slower. They show nothing of a network.",
        ("canonical",),
        30,
    ),
    Table(
        "collectives",
        "Collectives of 8 nodes",
        "Eight nodes have links of 500 Mbit/s, and all contenders play every case in turns.",
        ("collectives --peers all --sizes 1K,32K,1M,32M --rounds 3",),
        1800,
        needs_root=True,
    ),
    Table(
        "collectives-16",
        "Collectives of 16 nodes",
        "Sixteen nodes have links of 250 Mbit/s.",
        (
            "collectives --nodes 16 --rate-mbit 250 --peers gloo --sizes 1M,32M --rounds 1 "
            "--only broadcast,reduce,allreduce",
        ),
        240,
        needs_root=True,
    ),
    Table(
        "training",
        "Applications on Ray",
        "Eight real Ray nodes train a model, each over a link of 500 Mbit/s.",
        # All of 60 million parameters at once need more than 24 GB.
        ("training --parameters 10,25", "training --parameters 60 --only async"),
        1500,
        needs_root=True,
    ),
    Table(
        "reinforcement",
        "Reinforcement learning on Ray",
        "Seven actors play CartPole for a learner, each over a link of 500 Mbit/s.",
        # The paper's figures are 2.2 and 1.9 times plain Ray on 8 nodes.
        ("reinforcement", "reinforcement --parameters 60 --only A3C --turns 1 --rounds 3"),
        900,
        needs_root=True,
    ),
    Table(
        "sgd_death",
        "Training while workers die",
        "One of six workers is killed in the middle of a gradient, and comes back.",
        ("sgd_death",),
        140,
    ),
    Table(
        "serving",
        "Serving",
        "Stages of Ray Serve hand queries on by worlds, or by Serve's own handles.",
        ("serving",),
        1800,
        needs_root=True,
    ),
    Table(
        "promised",
        "A promised latency",
        "Pipelines run as planned; above their capacity; and beside plain Serve at many rates.",
        ("promised",),
        1200,
    ),
    Table(
        "surges",
        "Scaling ahead",
        "A simulated stage is scaled in surges: by our policy, by Serve's, and by an oracle.",
        ("surges",),
        90,
    ),
    Table(
        "policies",
        "Policies of scaling",
        "A pipeline runs under our policy and under Serve's, while the rate climbs.",
        ("policies",),
        600,
    ),
    Table(
        "weights",
        "Weights on a new node",
        "Replicas begin on a node that has joined, and map the same weights.",
        ("weights", "weights --size-mib 1024 --rate-mbit 1000 --rounds 1"),
        600,
        needs_root=True,
    ),
    Table(
        "rollouts",
        "Weights to rollouts that die and join",
        "A trainer changes 2 % of its weights every 10 s; a rollout dies and another joins every "
        "20 s.",
        ("rollouts",),
        1400,
        needs_root=True,
    ),
    Table(
        "worlds",
        "Messages over worlds",
        "Up to three processes send messages to one, on one machine.",
        ("worlds",),
        240,
    ),
    Table(
        "local",
        "Put and get on one node",
        "A process puts and gets objects beside Ray's own store.",
        ("local",),
        60,
    ),
    Table(
        "many_tensors",
        "A dict of 40,000 arrays",
        "A process puts and gets a dict as a large model has it, beside one array of its bytes.",
        ("many_tensors",),
        15,
    ),
    Table(
        "small",
        "Small objects, and an idle node",
        "One process moves objects of 1 KiB through its node.",
        ("small",),
        30,
    ),
    Table(
        "many_objects",
        "Small objects beside large ones",
        "A small object passes links that large broadcasts fill.",
        ("many_objects",),
        15,
        needs_root=True,
    ),
    Table(
        "fairness",
        "Small objects at a busy node",
        "A small object is got at a node that folds or receives large ones.",
        ("fairness",),
        60,
    ),
    Table(
        "sources",
        "A reduce of thousands of objects",
        "Four nodes of one machine reduce thousands of small objects.",
        ("sources", "sources --each"),
        15,
    ),
    Table(
        "two_hops",
        "One broadcast over two hops",
        "The second receiver gets its bytes from the first, which still receives.",
        ("two_hops",),
        45,
        needs_root=True,
    ),
    Table(
        "layouts",
        "The layout of a dict",
        "A dict of 2,000 arrays needs a layout beside its bytes.",
        ("layouts",),
        15,
    ),
    Table(
        "deletions",
        "What stays of deleted objects",
        "A process puts and deletes objects for a minute, and a node joins.",
        ("deletions",),
        70,
    ),
    Table(
        "death",
        "How fast a death is known",
        "A node loses a peer, by a kill or a cut cable.",
        ("death",),
        180,
        needs_root=True,
    ),
    Table(
        "world_death",
        "How fast a member's death is known",
        "A world loses a member, by a kill, a cut cable or a stop.",
        ("world_death",),
        320,
        needs_root=True,
    ),
    Table(
        "world_gpu",
        "Worlds on a GPU",
        "A world of two processes on one GPU loses a member.",
        ("world_gpu",),
        600,
        needs_gpu=True,
    ),
    Table(
        "encryption",
        "What encryption costs",
        "Two nodes and two members of a world send with `data_tls` and without it.",
        ("encryption",),
        30,
    ),
    Table(
        "overhead",
        "What trace and metrics cost",
        "Nodes remember moments and report counters, or do neither.",
        ("overhead",),
        200,
    ),
    Table(
        "kernels",
        "Sums of a block",
        "One core folds a block that stays in its cache.",
        ("kernels",),
        10,
    ),
    Table(
        "fast_link",
        "One fast link",
        "Two nodes are joined over loopback, and an object goes from one to the other.",
        ("fast_link",),
        60,
    ),
    Table(
        "deciding",
        "What deciding costs",
        "Engines are wired to each other by queues, so that a core decides and moves no bytes.",
        ("deciding",),
        60,
    ),
    Table(
        "scale",
        "64, 256 and 1,024 nodes",
        "The simulator runs the engines of that many nodes in virtual time, on links of 10 Gbit/s.",
        ("scale --nodes 64,256", "scale --nodes 1024 --sizes 1024"),
        300,
    ),
)
BY_NAME = {table.name: table for table in TABLES}
