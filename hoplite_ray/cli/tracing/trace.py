"""`hoplite-ray trace OBJECT`: from its put to its last get, over all nodes, in order of time."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hoplite_ray.cli.cluster.survey import find_and_survey
from hoplite_ray.cli.cluster.tables import columns, size
from hoplite_ray.cli.tracing.history import Memory, Moment, ask_memories, object_history
from hoplite_ray.errors import ControlError

_WIDTH = 64  # of a time-line

# Each kind of moment: its mark on a time line, and its text. A mark of two characters draws a time
# span and its end. Kinds without a mark are not drawn, because other kinds show the same.
_KINDS: dict[str, tuple[str, str]] = {
    "reserved": ("", "has room for {size}, as process {process} asked {for} before"),
    "sealed": ("P", "put by process {process}: {size}, to be read from now on"),
    "got": (".G", "get by process {process} answered: {size}, {for} after it was asked"),
    "failed": (".!", "asked by process {process}, failed after {for}: {error}"),
    "waits": (".?", "asked by process {process}, waits since {for}"),
    "wanted": ("", "hears as its home: {peer} wants it"),
    "granted": ("", "grants as its home{again}: {peer} receives {stripe} from {other}"),
    "receiving": ("", "asks {peer}{again} for {stripe}"),
    "arriving": ("=", "so far {size} of {stripe} from {peer}, over {for}"),
    "first": ("", "first block of {stripe} from {peer}"),
    "received": ("=|", "received {size} of {stripe} from {peer}, over {for}"),
    "serving": ("", "sends {stripe} to {peer}"),
    "refused": ("!", "{peer} can't send {stripe}"),
    "pushing": ("", "sends all of it to {peer}: {size}"),
    "pushed": ("|", "received all of it from {peer}: {size}"),
    "lost": ("!", "hears from its home, {peer}: nobody has it"),
    "delete": ("D", "told by {who} to delete it"),
    "dropped": ("D", "frees its copy, says its home, {peer}"),
    "orphaned": ("o", "hears from {who}: its owner has died"),
    "adopted": ("a", "asked by its home, {peer}, to keep it"),
    "spilling": ("", "begins to write {size} to its disk"),
    "reading": ("", "begins to read {size} back from its disk"),
    "spilled": ("~s", "disk done: {size} in {for}{error}"),
    "reduce": ("R", "process {process} wants it made out of others"),
    "folding": ("", "folds stripes of it, planned by {peer}"),
    "committed": ("C", "its sources are final, {said}"),
    "link down": ("x", "lost its link to {peer}"),
    "dead": ("X", "parted from {peer}: that life of it is over"),
}
_LEGEND = (
    "P put  =| received, until the last block  .G get, from its asking  .? waits  ! failed  "
    "D deleted  ~s disk  R reduce  C committed  o orphaned  a adopted  x link lost  X death"
)


def trace(arguments: argparse.Namespace) -> int:
    """Print one object's life; returns 0 if every node has answered."""
    cluster, seen = find_and_survey(arguments)
    nodes = [node for node in seen.nodes if node.answers]
    missing = [f"{node}: {node.why}" for node in seen.nodes if not node.answers]
    memories = []
    answers = ask_memories(cluster, nodes, arguments.object, timeout_s=arguments.timeout_s * 0.2)
    for node, answer in zip(nodes, answers, strict=True):
        if isinstance(answer, ControlError):
            missing.append(f"{node}: {answer}")
        else:
            memories.append(answer)
    moments = object_history(arguments.object, memories)
    if arguments.json:
        sys.stdout.write(json.dumps(_document(moments, memories, missing)) + "\n")
    else:
        sys.stdout.write("\n".join(_page(moments, memories)) + "\n")
        sys.stdout.writelines(f"not asked: {line}\n" for line in missing)
    return 1 if missing else 0


def _document(
    moments: Sequence[Moment], memories: Sequence[Memory], missing: list[str]
) -> dict[str, Any]:
    began_s = _began_s(moments)
    rows = []
    for moment in moments:
        row = asdict(moment)
        del row["object_id"]
        row["at_ms"] = (row.pop("at_s") - began_s) * 1e3
        row["since_ms"] = (row.pop("since_s") - began_s) * 1e3
        for name in ("node_id", "peer", "other"):
            row[name] = f"{row[name]:x}" if row[name] else None
        rows.append(row)
    return {
        "object_id": _object_id(moments),
        "began_s": time.time() - (time.monotonic() - began_s),
        "clock_error_ms": {
            f"{memory.node.node_id:x}": memory.clock_error_s * 1e3 for memory in memories
        },
        "forgotten_until_ms": {
            f"{memory.node.node_id:x}": (memory.whole_since_s - began_s) * 1e3
            for memory in memories
            if memory.whole_since_s is not None
        },
        "moments": rows,
        "missing": missing,
    }


def _page(moments: Sequence[Moment], memories: Sequence[Memory]) -> list[str]:
    began_s = _began_s(moments)
    ended_s = max(moment.at_s for moment in moments)
    at = time.strftime("%H:%M:%S", time.localtime(time.time() - (time.monotonic() - began_s)))
    error_s = max(memory.clock_error_s for memory in memories)
    lines = [
        f"object {_object_id(moments)}: {len(moments)} moments of {len(memories)} nodes, "
        f"over {_length(ended_s - began_s)} from {at} on",
        f"clocks of the nodes are compared to ± {_length(error_s)}: moments of two nodes that are "
        "closer than that may be in the other order",
        "",
        _table(moments, began_s),
        "",
        *_time_lines(moments, began_s, ended_s),
    ]
    lines += [
        f"node {memory.node.node_id:x} has forgotten what was before "
        f"{_length(memory.whole_since_s - began_s)}"
        for memory in memories
        if memory.whole_since_s is not None and memory.whole_since_s > began_s
    ]
    return lines


def _table(moments: Sequence[Moment], began_s: float) -> str:
    rows = [
        [f"{(moment.at_s - began_s) * 1e3:.3f}", f"{moment.node_id:x}", _words(moment)]
        for moment in moments
    ]
    return columns(("MS", "NODE", "WHAT"), rows, right=frozenset({"MS"}))


def _words(moment: Moment) -> str:
    process = str(moment.process)
    stripe = f"stripe {moment.stripe + 1}/{moment.stripe_count}"
    return (
        _KINDS[moment.kind][1]
        .format_map(
            {
                "process": process,
                "peer": f"{moment.peer:x}",
                "other": f"{moment.other:x}",
                "who": f"process {process}" if moment.process else f"{moment.peer:x}",
                "said": f"process {process} is told" if moment.process else f"says {moment.peer:x}",
                "size": size(moment.size_bytes),
                "for": _length(moment.at_s - moment.since_s),
                "stripe": stripe if moment.stripe_count > 1 else "it",
                "again": " again" if moment.again else "",
                "error": moment.error,
            }
        )
        .rstrip()
    )


def _time_lines(moments: Sequence[Moment], began_s: float, ended_s: float) -> list[str]:
    """Draw a line for each node on one time scale: moments over transfers over waits."""
    scale = (_WIDTH - 1) / max(ended_s - began_s, 1e-9)

    def place(at_s: float) -> int:
        return min(max(int((at_s - began_s) * scale), 0), _WIDTH - 1)

    lines: dict[int, list[str]] = {}
    for moment in sorted(moments, key=lambda moment: not _KINDS[moment.kind][0].startswith(".")):
        line = lines.setdefault(moment.node_id, [" "] * _WIDTH)
        mark = _KINDS[moment.kind][0]
        if len(mark) == 2:
            for i in range(place(moment.since_s), place(moment.at_s)):
                line[i] = mark[0]
    for moment in moments:
        if mark := _KINDS[moment.kind][0]:
            lines[moment.node_id][place(moment.at_s)] = mark[-1]
    rows = [[f"{node_id:x}", f"|{''.join(line)}|"] for node_id, line in lines.items()]
    head = f"0{_length(ended_s - began_s):>{_WIDTH + 1}}"
    return [columns(("NODE", head), rows, right=frozenset()), _LEGEND]


def _began_s(moments: Sequence[Moment]) -> float:
    return min(moment.since_s for moment in moments)


def _object_id(moments: Sequence[Moment]) -> str:
    return next(moment.object_id.hex() for moment in moments if any(moment.object_id))


def _length(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds >= 1 else f"{seconds * 1e3:.3f} ms"
