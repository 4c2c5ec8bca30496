"""Every code block of a page is executed by a test, or says by its language that it is to be read.

A table says which file tests each page's blocks of a language. Blocks of `text` are pictures,
grammars and output of a terminal; they need no test.
"""

from __future__ import annotations

import re

from tests.house.tree import Tree

TEXT = "text"
PROGRAMS = "tests/ray/test_readme.py"
OPERATE = "tests/unit/test_operate_pages.py"
SERVE = "tests/serve/test_docs.py"
WORLDS = "tests/process/test_worlds_docs.py"
CLAIMS = {
    ("README.md", "sh"): "tests/house/readme.py",
    ("README.md", "python"): PROGRAMS,
    ("docs/get-started/first-broadcast.md", "python"): PROGRAMS,
    ("docs/get-started/first-pipeline.md", "python"): SERVE,
    ("docs/get-started/first-reduce.md", "python"): PROGRAMS,
    ("docs/get-started/first-world.md", "python"): WORLDS,
    ("docs/how-to/keep-a-latency.md", "python"): SERVE,
    ("docs/how-to/keep-queries-through-failures.md", "python"): SERVE,
    ("docs/how-to/keep-versions-in-a-table.md", "python"): PROGRAMS,
    ("docs/how-to/load-a-model-as-it-arrives.md", "python"): PROGRAMS,
    ("docs/how-to/migrate-from-multiworld.md", "python"): WORLDS,
    ("docs/how-to/migrate-from-torch-distributed.md", "python"): WORLDS,
    ("docs/how-to/read-a-part-of-a-value.md", "python"): PROGRAMS,
    ("docs/how-to/replace-a-dead-member.md", "python"): WORLDS,
    ("docs/how-to/send-without-copies.md", "python"): WORLDS,
    ("docs/how-to/serve-an-ensemble.md", "python"): SERVE,
    ("docs/how-to/serve-large-values.md", "python"): SERVE,
    ("docs/how-to/share-weights-between-replicas.md", "python"): SERVE,
    ("docs/how-to/sync-weights-to-rollout-workers.md", "python"): PROGRAMS,
    ("docs/how-to/train-with-reinforcement-learning.md", "python"): PROGRAMS,
    ("docs/how-to/use-from-ray-collective.md", "python"): PROGRAMS,
    ("docs/how-to/use-from-ray-direct-transport.md", "python"): PROGRAMS,
    ("docs/how-to/use-the-store-without-ray.md", "python"): PROGRAMS,
    ("docs/how-to/write-async-code.md", "python"): PROGRAMS,
    ("docs/internals/mistakes.md", "python"): "tests/mistakes.py",
    ("docs/internals/performance/methodology.md", "sh"): "tests/unit/test_collectives_table.py",
    ("docs/how-to/choose-memory-and-spilling.md", "console"): OPERATE,
    ("docs/operate/alerts.md", "console"): OPERATE,
    ("docs/operate/certificates.md", "console"): OPERATE,
    ("docs/operate/certificates.md", "sh"): "tests/process/test_tls.py",
    ("docs/operate/configure.md", "console"): OPERATE,
    ("docs/operate/drain-and-scale.md", "console"): OPERATE,
    ("docs/operate/monitor.md", "console"): OPERATE,
    ("docs/operate/network-and-ports.md", "console"): OPERATE,
    ("docs/operate/secure.md", "console"): OPERATE,
    ("docs/operate/size.md", "console"): OPERATE,
    ("docs/operate/upgrade.md", "console"): OPERATE,
    ("docs/reference/cli.md", ""): "tests/process/test_operations.py",
    ("docs/reference/serving.md", "python"): "tests/unit/test_serve_placement.py",
    ("docs/internals/wire.md", "hex"): "native/wire/wire_doc_test.cc",
}
_FENCE = re.compile(r"^ *```(\w*)", re.M)


def claimed(tree: Tree) -> list[str]:
    found = []
    for page in ["README.md", *tree.matching(r"docs/.*\.md")]:
        if not tree.exists(page):
            continue
        languages = _FENCE.findall(tree.read(page))[::2]
        of_page = {language: by for (which, language), by in CLAIMS.items() if which == page}
        for language in sorted({*languages} - {*of_page, TEXT}):
            blocks = f"its blocks of {language}" if language else "blocks without a language"
            found.append(
                f"{page}: {blocks} are claimed by no test: execute them, and say so in "
                f"tests/house/blocks.py, or let them be of {TEXT}"
            )
        for language, by in of_page.items():
            if language not in languages:
                found.append(f"{page}: has no block of {language!r} for {by}")
            elif not tree.exists(by) or page.rpartition("/")[2] not in tree.read(by):
                found.append(f"{by}: does not read {page}, whose blocks of {language!r} it claims")
    return found
