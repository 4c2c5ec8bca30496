"""The script that a raylet of these tests runs in place of Ray's own `setup_worker.py`.

Ray's imports all of Ray, 0.35 s of a core, and then becomes a process that imports it again. This
one sets the same variables and becomes the same worker. The clusters of test_launchers.py and
those that a program starts by `ray.init` run Ray's own, so that the flag is tested with it, too.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys

CONTEXT = "--serialized-runtime-env-context="
_UNSET = re.compile(r"\$\{[A-Z0-9_]+\}")


def main(arguments: list[str]) -> None:
    """Become the worker that `arguments` name."""
    context = {}
    words = []
    for each in arguments:
        if each.startswith(CONTEXT):
            context = json.loads(each.removeprefix(CONTEXT))
        elif not each.startswith("--language="):
            words.append(each)
    if context.get("command_prefix") or context.get("override_worker_entrypoint"):
        raise SystemExit("give this cluster setup_worker_path=None: it needs Ray's own")
    for name, value in context.get("env_vars", {}).items():
        os.environ[name] = _UNSET.sub("", os.path.expandvars(value))
    python = context.get("py_executable") or sys.executable
    command = " ".join(["exec", python, *map(shlex.quote, words)])
    os.execvp("bash", ["bash", "-c", command])


if __name__ == "__main__":
    main(sys.argv[1:])
