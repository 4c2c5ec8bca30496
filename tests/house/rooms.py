"""House-style 1: a package has rooms, and their arrows go down only.

A room is a module or a folder of a package. Four rules hold for all code that users get:

- a room imports from itself and from rooms below it, also inside functions and by `import_module`;
- no modules import each other in a cycle, also when imports inside functions are counted;
- a folder has at most 12 code files;
- a room of Python that is a folder says in its `__init__.py` what it is for.

Imports under TYPE_CHECKING are not counted, because nothing executes them. The folders of native/
have rooms, too: their arrows are the #includes of code that isn't a test.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from tests.house.tree import Tree

# Package -> its rooms from top to bottom. Rooms of one line stand beside each other: they may
# import each other. To give a package rooms, add a line for it here.
ROOMS: dict[str, tuple[str, ...]] = {
    "hoplite_ray": (
        "cli",
        "serve",
        "worlds",
        "node",
        "integrations",
        "__init__",
        "plugin",
        "store collectives publishing",
        "channel parts streams",
        "client",
        "pending unsealed launch listener progress",
        "metrics",
        "control",
        "tables",
        "values",
        "config process_end errors",
        "base",
    ),
    "hoplite_ray/cli": (
        "__main__",
        "__init__",
        "command_line",
        "commands options",
        "checks live tracing",
        "cluster",
    ),
    "hoplite_ray/control": (
        "service",
        "views",
        "holders",
        "asking",
        "client",
        "auth tls voting",
        "view methods",
        "control_pb2",
    ),
    "hoplite_ray/serve": (
        "__init__",
        "slo",
        "placement",
        "graph",
        "stages",
        "routing",
        "edge",
        "errors metrics seams",
    ),
    "hoplite_ray/worlds": (
        "__init__ collectives events manager multiworld process world",
        "ops",
        "meeting",
        "lending",
        "gpu",
        "handshake",
        "core",
    ),
    "hoplite_ray/integrations": ("verl vllm vllm_plugin", "named_tensors"),
    "hoplite_ray/plugin": (
        "array collecting",  # names in pickles on disk
        "hooks",
        "tables",
        "surface",
        "steward",
        "direct groups",
        "handle",
        "process",
        "steward_client",
        "node",
        "seams",
    ),
    "native/plan": (
        "engine",
        "reduce",
        "directory",
        "broadcast",
        "objects",
        "links",
        "messages",
    ),
    "native/io": (
        "links bulk local_port",
        "liveness",
        "memory",
        "sockets",
        "log read_clock signals_blocked",
    ),
    "native/wire": (
        "local",
        "archive channel_fields crc32c directory_fields frame frame_types keeping_fields layouts"
        " link_fields reader reduce_fields shared_fields",
    ),
    "native/world": ("nccl", "companion progress world", "edges", "pipes"),
    "native/sim": ("main", "runs scenarios", "cluster", "check", "model"),
}

# (importer, imported): loaded by name where another process begins. Each says why at its place.
BY_NAME = {
    ("hoplite_ray/plugin/steward_client/client.py", "hoplite_ray/plugin/steward/steward.py"),
}

FILES_MAX = 12

TEST = re.compile(r"_(test|fuzz|bench)\.(h|cc)$")
INCLUDE = re.compile(r'^#include "([\w/]+\.h)"', re.M)

SENTENCES = range(2, 7)  # of the docstring of a room
SERVE = "serve_integration/"  # imported as hoplite_ray.serve


def arrows(tree: Tree) -> list[str]:
    """Imports from a lower room to a higher one, and modules that are in no room."""
    found = set()
    for importer, imported in [*_all_imports(tree), *_all_includes(tree)]:
        if (importer, imported) in BY_NAME:
            continue
        for package in ROOMS:
            above, below = _room(package, importer), _room(package, imported)
            if above is None or below is None or above == below:
                continue
            levels = [_level(package, room) for room in (above, below)]
            if -1 not in levels and levels[0] > levels[1]:
                found.add(f"{importer}: {above} stands below {below}, and imports {imported}")
    for path in [*tree.shipped, *_native(tree)]:
        for package in ROOMS:
            room = _room(package, path)
            if room is not None and room != "__init__" and _level(package, room) < 0:
                found.add(f"{path}: {room} is no room of {package}; name it in ROOMS of rooms.py")
    return sorted(found)


def cycles(tree: Tree) -> list[str]:
    """Modules that import each other: none of them can be understood or tested alone."""
    needs: dict[str, set[str]] = {path: set() for path in tree.shipped}
    for importer, imported in _all_imports(tree):
        if (importer, imported) not in BY_NAME:
            needs[importer].add(imported)
    while leaves := {path for path, wanted in needs.items() if not wanted & needs.keys()}:
        needs = {path: wanted for path, wanted in needs.items() if path not in leaves}
    while needs and (unneeded := needs.keys() - set().union(*needs.values())):
        needs = {path: wanted for path, wanted in needs.items() if path not in unneeded}
    return [f"{', '.join(sorted(needs))}: import each other"] if needs else []


def folders(tree: Tree) -> list[str]:
    """Folders with too many code files; x.h and x.cc of native/ count as one, and tests as none."""
    modules = {path.removesuffix(".py") for path in tree.shipped if "/__" not in path}
    modules |= {path.rpartition(".")[0] for path in _native(tree)}
    counted = Counter(module.rpartition("/")[0] for module in modules)
    found = []
    for folder, count in sorted(counted.items()):
        if count > FILES_MAX:
            found.append(f"{folder}: {count} code files (at most {FILES_MAX}); make rooms in it")
    return found


def doors(tree: Tree) -> list[str]:
    """Rooms whose `__init__.py` says too little, or too much, of what they are for."""
    found = []
    paths = {_home(path): path for path in tree.shipped}
    for folder in sorted({path.rpartition("/")[0] for path in paths}):
        package = folder.rpartition("/")[0]
        if package == "hoplite_ray" or package not in ROOMS:
            continue
        door = paths.get(f"{folder}/__init__.py")
        text = None if door is None else ast.get_docstring(ast.parse(tree.read(door)))
        sentences = len(re.findall(r"[.!?](?=\s|$)", text or ""))
        if sentences not in SENTENCES:
            found.append(
                f"{folder}/__init__.py: {sentences} sentences; say in 2 to 6 what the room is for, "
                "what it may use, and where to start"
            )
    return found


def _room(package: str, path: str) -> str | None:
    """The room of `package` that a file is in; None if it is not in the package."""
    inside = _home(path).partition(".")[0]
    if not inside.startswith(f"{package}/"):
        return None
    return inside.removeprefix(f"{package}/").split("/")[0]


def _level(package: str, room: str) -> int:
    """The line of the room in ROOMS, from the top; -1 if it has none."""
    lines = [line.split() for line in ROOMS[package]]
    return next((at for at, names in enumerate(lines) if room in names), -1)


def _home(path: str) -> str:
    return f"hoplite_ray/serve/{path.removeprefix(SERVE)}" if path.startswith(SERVE) else path


def _all_imports(tree: Tree) -> Iterator[tuple[str, str]]:
    """(importer, imported) of all imports of shipped modules by each other."""
    paths = {name: path for path in tree.shipped for name in _names(path)}
    for importer in tree.shipped:
        for imported in _imported(tree, importer, paths):
            if imported != importer:
                yield importer, imported


def _native(tree: Tree) -> list[str]:
    """The files of native/ that are no tests, fuzz targets or benchmarks."""
    return [path for path in tree.cpp if not TEST.search(path)]


def _all_includes(tree: Tree) -> Iterator[tuple[str, str]]:
    """(user, header) of all #includes by code of native/ that is no test."""
    for path in _native(tree):
        for header in INCLUDE.findall(tree.read(path)):
            yield path, f"native/{header}"


def _names(path: str) -> set[str]:
    """The names under which a file is imported."""
    return {
        each.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for each in (path, _home(path))
    }


def _imported(tree: Tree, path: str, paths: dict[str, str]) -> Iterator[str]:
    for node in _executed(ast.parse(tree.read(path))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = _home(path).removesuffix(".py").split("/")[: -node.level or None]
            base = ".".join([*(package if node.level else []), *filter(None, [node.module])])
            inner = [f"{base}.{alias.name}" for alias in node.names]
            names = [name if name in paths or _is_native(tree, name) else base for name in inner]
        else:
            names = _loaded_by_name(node)
        yield from (paths[name] for name in names if name in paths)


def _is_native(tree: Tree, name: str) -> bool:
    return tree.exists(f"{name.replace('.', '/')}.pyi")


def _loaded_by_name(node: ast.AST) -> list[str]:
    """The module of `import_module("a.b")`."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        return [str(each.value) for each in node.args[:1] if isinstance(each, ast.Constant)]
    return []


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below, except those that only a type checker reads."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            for each in child.orelse:
                yield each
                yield from _executed(each)
        else:
            yield child
            yield from _executed(child)
