"""The pages for operators say what the code says: options, commands, metrics, alerts, limits."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from textwrap import dedent

import pytest

from hoplite_ray import _native, config
from hoplite_ray.cli import command_line
from hoplite_ray.config import DEFAULTS, variable_of
from hoplite_ray.metrics import dashboards
from hoplite_ray.node import options as node_options

DOCS = Path(__file__).parents[2] / "docs"
LIMITS = DOCS.parent / "native/base/limits.h"
WITH_COMMANDS = [
    "how-to/choose-memory-and-spilling.md",
    "operate/alerts.md",
    "operate/certificates.md",
    "operate/configure.md",
    "operate/drain-and-scale.md",
    "operate/monitor.md",
    "operate/network-and-ports.md",
    "operate/secure.md",
    "operate/size.md",
    "operate/upgrade.md",
]
WITH_ANCHORS = [
    *sorted(str(page.relative_to(DOCS)) for page in DOCS.glob("operate/*.md")),
    "explain/lifetime.md",
    "explain/security-model.md",
    "how-to/choose-memory-and-spilling.md",
    "internals/attacks.md",
    "reference/cli.md",
    "reference/health.md",
    "reference/limits.md",
    "reference/metrics.md",
]
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "ms": 1e-3, "s": 1}


def read(page: str) -> str:
    return (DOCS / page).read_text()


def section(page: str, heading: str) -> str:
    """What stands under a heading, up to the next one of its kind."""
    return read(page).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of all tables in a text, without the heads."""
    lines = [line for line in text.splitlines() if re.match(r"\| `", line)]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line[1:-1])] for line in lines]


def words(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


def shown_values(name: str) -> str:
    if name in config._WORDS:
        return ", ".join(f"`{word}`" for word in config._WORDS[name])
    if name in config._PLACES:
        return "an absolute path"
    if name in config._NETWORKS:
        return f"1 to {config.rails_max()} networks"
    return "{:,} to {:,}".format(*config.range_of(name))


def test_every_option_of_a_cluster_has_its_variable_default_and_range() -> None:
    table = rows(section("operate/configure.md", "Options of a cluster"))
    wanted = [
        [f"`{name}`", f"`{variable_of(name)}`", default, shown_values(name)]
        for name, default in DEFAULTS.items()
    ]
    assert [row[:4] for row in table if len(row) == 5] == wanted
    assert [row[0] for row in table if len(row) == 2] == [f"`{name}`" for name in DEFAULTS]


def test_a_word_of_an_option_is_a_number_of_the_native_node() -> None:
    ranges = _native.option_ranges()
    for name, words_of_it in config._WORDS.items():
        assert ranges[name] == (0, len(words_of_it) - 1), name


def test_every_variable_of_a_process_is_there() -> None:
    table = rows(section("operate/configure.md", "Variables of a process"))
    ours = {f"HOPLITE_RAY_{name}" for name in config._OWN_VARIABLES}
    named = {name for row in table for name in words(row[0])}
    assert {name for name in named if name.startswith("HOPLITE")} == ours
    assert {"RAY_USE_TLS", "RAY_TLS_SERVER_CERT", "RAY_ADDRESS"} <= named


def test_every_option_of_a_node_is_there() -> None:
    table = rows(section("operate/configure.md", "Node options"))
    own = {name: each for name, each in _native.option_ranges().items() if name not in DEFAULTS}
    ranges = [
        f"{least} or more" if most == (1 << 63) - 1 else f"{least} to {most}"
        for least, most in own.values()
    ]
    wanted = [(f"`{name}`", each) for name, each in zip(own, ranges, strict=True)]
    assert [(row[0], row[2]) for row in table] == wanted


def test_the_default_rate_of_a_link_is_that_of_the_native_node() -> None:
    (bytes_per_s,) = re.findall(r"kLinkBytesPerS = ([\d']+);", LIMITS.read_text())
    assert int(DEFAULTS["link_mbit"]) * 125_000 == int(bytes_per_s.replace("'", ""))


def test_every_argument_of_a_node_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    table = rows(section("operate/configure.md", "Command line of a node"))
    with pytest.raises(SystemExit):
        node_options.parse_arguments(["--help"])
    told = re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.M)
    assert [row[0] for row in table] == [f"`{name}`" for name in told]


def subcommands() -> dict[str, argparse.ArgumentParser]:
    (found,) = (
        action.choices
        for action in command_line.parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return dict(found)


def test_every_command_has_its_section() -> None:
    table = re.findall(r"^\| \[`([\w]+)", section("reference/cli.md", "Commands"), re.M)
    headings = set(re.findall(r"^## (\w+)$", read("reference/cli.md"), re.M))
    assert {*table} == {*subcommands()} <= headings


def test_every_option_of_a_command_is_there() -> None:
    parsers = subcommands()
    wanted: dict[str, set[str]] = {}
    for name, parser in parsers.items():
        for option in [each for action in parser._actions for each in action.option_strings]:
            wanted.setdefault(f"`{option}`", set()).add(name)
    told = {
        row[0]: {*parsers} - words(row[1]) if row[1].startswith("all but") else words(row[1])
        for row in rows(section("reference/cli.md", "Options of the commands"))
    }
    assert told == {name: by for name, by in wanted.items() if name not in ("`-h`", "`--help`")}


def test_every_metric_is_in_the_table() -> None:
    table = [
        f"| {panel} | `{metric.exposed_name}` | {metric.meaning} |"
        for panel, of_panel in dashboards.PANELS.items()
        for metric in of_panel
    ]
    told = [line for line in read("reference/metrics.md").splitlines() if "| `ray_" in line]
    assert told == table, "\n".join(table)


def number(text: str) -> float:
    """A limit as the page or the header has it: `1,024`, `2 s`, `256_KiB`, `1024_GiB`."""
    found = re.match(r"([\d,']+)[ _]?(\w*)", text)
    assert found is not None, text
    return int(re.sub(r"[,']", "", found[1])) * _UNITS.get(found[2], 1)


def test_limits_are_those_of_the_header() -> None:
    messages = DOCS.parent / "native/plan/messages"
    headers = (LIMITS, messages / "channel_messages.h", messages / "keeping_messages.h")
    text = "".join(each.read_text() for each in headers)
    stated = re.findall(r"^inline constexpr [\w:]+ ([^;]+);", text, re.M)
    header = dict(re.findall(r"(k\w+) = ([^,]+)", ", ".join(stated)))
    told = re.findall(r"(\d[\d,]*(?: [KMGT]iB| m?s)?) \(`(k\w+)`\)", read("reference/limits.md"))
    assert len(told) >= 12
    for value, name in told:
        assert number(value) == number(header[name]), name


@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_commands_of_a_page_can_be_given(page: str) -> None:
    blocks = re.findall(r"^ *```console\n(.*?)^ *```", read(page), re.M | re.S)
    assert blocks
    for line in dedent("".join(blocks)).splitlines():
        assert re.match(r" *\$ ", line), f"{page}: a command begins with a dollar: {line}"
        first, *rest = shlex.split(line.strip()[2:], comments=True)
        if first == "hoplite-ray":
            arguments = rest[: rest.index(">")] if ">" in rest else rest
            assert command_line.parser().parse_args(arguments)
        elif rest[:2] == ["-m", "hoplite_ray.node"]:
            assert node_options.parse_arguments(rest[2:])
        elif first == "export":
            environment = dict(each.split("=", 1) for each in rest)
            assert config.Config.from_environment(environment).explicit()


@pytest.mark.parametrize("page", WITH_ANCHORS)
def test_links_within_pages_lead_to_headings(page: str) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", read(page)):
        if target.startswith("http"):
            continue
        text = (DOCS / page).parent.joinpath(target).read_text() if target else read(page)
        headings = re.findall(r"^#+ (.*)$", text, re.M)
        slugs = {
            re.sub(r"[^\w\- ]", "", each).strip().lower().replace(" ", "-") for each in headings
        }
        assert anchor in slugs, f"{page}: {target}#{anchor}"
