"""House-style 5: one word, one idea, as identifiers of native/plan and as public Python names.

Functions of Python code are verbs. Old names that are participles are left in `verbs.json`, by
file. That table may only become shorter: a new such name fails, and so does an entry without one.
`python -m tests.house.words` writes the table without the entries that have gone.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from itertools import pairwise

from tests.house.tree import ROOT, Tree, repository, without_comments

# The word that is never used -> the one that is.
NEVER = {
    "server": "node",
    "host": "node",
    "daemon": "node",
    "group": "world",
    "communicator": "world",
    "worker id": "rank",
    "channel": "rail",
    "lane": "rail",
    "blob": "object",
    "chunk": "block",
    "segment": "block",
    "slice": "block",
    "piece": "block",
    "registry": "directory",
    "gcs": "directory",
    "lock": "lease",
    "occupy": "lease",
    "download": "pull",
    "fan out": "broadcast tree",
    "fanout": "broadcast tree",
    "multicast": "broadcast tree",
    "aggregation": "reduce tree",
    "chain": "reduce tree",
    "generation": "epoch",
    "term": "epoch",
    "version": "incarnation",
    "attempt id": "incarnation",
    "session": "link",
    "pool": "link",
    "quota": "reservation",
}
# In Python a path is a file's, as everywhere.
NEVER_IN_PLAN = NEVER | {"path": "rail"}
# A version channel has these words: a publisher takes a term, and its versions have numbers.
OF_CHANNELS = {"channel", "term", "version"}
CHANNELS = re.compile(
    r"native/plan/|hoplite_ray/(channel/|integrations/|(plugin/surface/)?publishing\.py|client\.py"
    r"|values/versions\.py|metrics/dashboards\.py|_native\.pyi|cli/live/|control/|plugin/steward/)"
)
NEVER_IN_TYPES = re.compile(r"(Helper|Util|Utils|Impl|Base|Manager)$")
TYPES_KEPT = {"WorldManager"}  # MultiWorld's own name, kept for its users
# The awaitable twin of get; what Ray and verl call for groups; MultiWorld's own name.
NAMES_KEPT = {"get_async", "destroy_group", "init_process_group", "communicator"}
# A version of a key is what `hop.Table` keeps: files of tables, and the errors, have the word.
VERSIONED = re.compile(r"hoplite_ray/((plugin/)?tables/|errors\.py)")
# The protocol's version, carried by HELLO; the address of Ray's own GCS.
PHRASES_KEPT = {"wire version", "gcs address"}

# Participles and past tenses that don't end in -ed. With an object after it a participle describes
# a value (`lost_sources`), so only a name that ends here, or in a particle, is no verb.
PARTICIPLES = set(
    """been begun bound broken built chosen come done drawn fed felt found given gone got had heard
    held hidden kept known laid left lent lost made meant met paid ran rang said seen sent shown
    sold spent spoken stood taken taught thought told took understood went won written""".split()
)
VERBS_IN_ED = {"embed", "exceed", "feed", "heed", "need", "proceed", "seed", "shed", "speed"}
PARTICLES = set(
    "all at away back by down first from in of off on out over to together up with".split()
)
OLD_NAMES = "tests/house/verbs.json"


def split(name: str) -> list[str]:
    """The words of snake_case, kConstant and PascalCase, in lower case."""
    spaced = re.sub(r"([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])", r"\1\3 \2\4", name)
    return re.sub(r"[_\W]+", " ", spaced).lower().split()


def complaint(name: str, never: dict[str, str]) -> str | None:
    if name in NAMES_KEPT:
        return None
    words = split(name)
    pairs = [" ".join(pair) for pair in pairwise(words)]
    kept = {word for pair in pairs if pair in PHRASES_KEPT for word in pair.split()}
    for word in [*(word for word in words if word not in kept), *pairs]:
        for form in (word, word.removesuffix("s")):
            if form in never:
                return f"{name} says '{form}', the word is '{never[form]}'"
    if name not in TYPES_KEPT and name[:1].isupper() and NEVER_IN_TYPES.search(name):
        return f"{name}: no Helper, Util, Impl, Base, Manager"
    if name.startswith("get_"):
        return f"{name}: no get_"
    return None


def plan(tree: Tree) -> list[str]:
    found = set()
    for path in tree.matching(r"native/plan/.*\.(h|cc)"):
        code = re.sub(r"^\s*#[^\n]*", "", without_comments(tree.read(path)), flags=re.M)
        never = {word: use for word, use in NEVER_IN_PLAN.items() if word not in OF_CHANNELS}
        for name in re.findall(r"(?<!std::)\b[A-Za-z_]\w*", code):
            if text := complaint(name, never):
                found.add(f"{path}: {text}")
    return sorted(found)


def python(tree: Tree) -> list[str]:
    found = set()
    for path in tree.package + tree.matching(r"hoplite_ray/_native\.pyi"):
        for name in public_names(ast.parse(tree.read(path))):
            if "/plugin/" in path and name.startswith("get_"):
                continue  # Ray's own name for something that it calls
            never = {**NEVER}
            if VERSIONED.match(path):
                del never["version"]
            if CHANNELS.match(path):
                never = {word: use for word, use in never.items() if word not in OF_CHANNELS}
            if text := complaint(name, never):
                found.add(f"{path}: {text}")
    return sorted(found)


def verbs(tree: Tree) -> list[str]:
    """Functions whose name is a participle, and entries of the table without such a function."""
    old: dict[str, list[str]] = json.loads(tree.read(OLD_NAMES)) if tree.exists(OLD_NAMES) else {}
    found = []
    present = dict(participles(tree))
    for path in sorted(old.keys() | present.keys()):
        names, allowed = present.get(path, set()), set(old.get(path, ()))
        found += [f"{path}: {name}() is no verb" for name in sorted(names - allowed)]
        found += [f"{path}: take {name} out of {OLD_NAMES}" for name in sorted(allowed - names)]
    return found


def participles(tree: Tree) -> Iterator[tuple[str, set[str]]]:
    """Each Python file that has functions named by a participle, and their names."""
    for path in tree.python:
        nodes = ast.walk(ast.parse(tree.read(path)))
        functions = (n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
        if names := {each.name for each in functions if is_participle(each.name)}:
            yield path, names


def is_participle(name: str) -> bool:
    """True for `told`, `_given_up` and `doubled`; False for `feed` and `lost_sources`."""
    first, *rest = split(name) or [""]
    is_past = first in PARTICIPLES or (first.endswith("ed") and first not in VERBS_IN_ED)
    return is_past and set(rest) <= PARTICLES


def public_names(body: ast.AST) -> Iterator[str]:
    """Functions, classes, arguments, and names that modules and classes assign; none that hides."""
    for node in ast.iter_child_nodes(body):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name
            yield from public_names(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name == "__init__" or not node.name.startswith("_"):
                yield node.name
                arguments = node.args
                for argument in arguments.posonlyargs + arguments.args + arguments.kwonlyargs:
                    yield argument.arg
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name) and not target.id.startswith("_"):
                    yield target.id


# What a reader can't guess -> the verbs of docs/internals/architecture.md, "Verbs".
VAGUE = {
    "let go": "end_, drop, release or forget",
    "part from": "disconnect",
    "give up": "cancel or fail",
    "give back": "release",
    "take back": "cancel",
    "see off": "finish",
    "strike off": "unregister",
    "bury": "declare_dead",
    "abandon": "drop or cancel",
    "say": "send or report",
    "hear": "handle_",
    "tell": "send or report",
}
OLD_NATIVE_NAMES = "tests/house/verbs_native.json"
# The head of a declaration or definition of a function: its return type and its name.
NATIVE_HEAD = re.compile(
    r"^(?P<indent> *)(?!return|else|throw|new|case|delete|co_)[A-Za-z_\[][^;{}()=#\n]*?[\s&*>]"
    r"(?:\w+::)*(?P<name>[a-z]\w*)(?=\()",
    re.M,
)
NATIVE_TAIL = re.compile(r"[\s\w]*(?P<end>[{;=])")


def native_verbs(tree: Tree) -> list[str]:
    """Native functions that are no verbs, and entries of the table without such a function."""
    old: dict[str, list[str]] = (
        json.loads(tree.read(OLD_NATIVE_NAMES)) if tree.exists(OLD_NATIVE_NAMES) else {}
    )
    present: dict[str, dict[str, str]] = {}
    for path in tree.cpp:
        room = "/".join(path.split("/")[:2])
        for name in native_functions(tree.read(path), is_header=path.endswith(".h")):
            if text := vague(name):
                present.setdefault(room, {})[name] = f"{path}: {name}() {text}"
    found = []
    for room in sorted(old.keys() | present.keys()):
        names, allowed = present.get(room, {}), set(old.get(room, ()))
        found += [text for name, text in sorted(names.items()) if name not in allowed]
        gone = sorted(allowed - names.keys())
        found += [f"{room}: take {name} out of {OLD_NATIVE_NAMES}" for name in gone]
    return found


def vague(name: str) -> str | None:
    first, *rest = split(name) or [""]
    if verbs := VAGUE.get(" ".join([first, *rest])):
        return f"is vague, the verb is {verbs}"
    return "is a participle, not a verb" if is_participle(name) else None


def native_functions(code: str, *, is_header: bool) -> Iterator[str]:
    """Names of the functions that C++ code defines, and that a header declares."""
    code = without_comments(code)
    for head in NATIVE_HEAD.finditer(code):
        depth, at = 0, head.end()
        while at < len(code):
            depth += {"(": 1, ")": -1}.get(code[at], 0)
            at += 1
            if depth == 0:
                break
        tail = NATIVE_TAIL.match(code, at)
        if tail and (tail["end"] == "{" or (is_header and len(head["indent"]) <= 2)):
            yield head["name"]


def main() -> int:
    """Write the table of old names without those that have gone; no new name gets in."""
    tree = repository()
    old: dict[str, list[str]] = json.loads(tree.read(OLD_NAMES))
    kept = {path: sorted(names & set(old.get(path, ()))) for path, names in participles(tree)}
    table = {path: names for path, names in sorted(kept.items()) if names}
    (ROOT / OLD_NAMES).write_text(json.dumps(table, indent=0) + "\n")
    sys.stdout.write(f"{sum(map(len, table.values()))} names in {len(table)} files\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
