"""The help of `hoplite-ray`: every command explains itself and has an example that parses."""

from __future__ import annotations

import argparse
import re
import shlex

import pytest

import hoplite_ray.cli
from hoplite_ray.cli.command_line import COMMANDS, Command, parser
from hoplite_ray.node.options import parse_arguments

OF_COMMAND = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
# A phrase that begins so needs the name of its option or command to be understood.
LEANS_ON_ITS_NAME = re.compile(r"(of|its|their|for|as|how|what|that|which|between|in|from)\b")


def parser_of(command: Command) -> argparse.ArgumentParser:
    [subcommands] = [each for each in parser()._actions if hasattr(each.choices, "values")]
    assert subcommands.choices is not None
    found = dict(subcommands.choices)[command.name]  # type: ignore[call-overload]
    assert isinstance(found, argparse.ArgumentParser)
    return found


@OF_COMMAND
def test_the_help_of_a_command_describes_it_and_has_an_example(command: Command) -> None:
    text = parser_of(command).format_help()
    assert command.description in text
    assert f"example:\n  {command.example}\n" in text


@OF_COMMAND
def test_the_example_of_a_command_parses(command: Command) -> None:
    program, *arguments = shlex.split(command.example.partition(">")[0])
    assert program == "hoplite-ray"
    assert parser().parse_args(arguments).command is command.run


@OF_COMMAND
def test_help_texts_are_phrases_that_stand_alone(command: Command) -> None:
    texts = {each.dest: each.help or "" for each in parser_of(command)._actions}
    assert all(texts.values()), "an option without help"
    assert [name for name, text in texts.items() if LEANS_ON_ITS_NAME.match(text)] == []


def test_the_package_and_the_help_list_the_same_commands() -> None:
    listed = re.findall(
        r"^    hoplite-ray (\w+)[ A-Z]* {2,}(.*)$", hoplite_ray.cli.__doc__ or "", re.M
    )
    assert listed == [(command.name, command.summary) for command in COMMANDS]


def test_the_help_of_a_node_has_an_example_and_phrases(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        parse_arguments(["--help"])
    text = capsys.readouterr().out
    example = text.partition("example:\n  python -m hoplite_ray.node ")[2]
    assert parse_arguments(shlex.split(example)).listen == ["192.0.2.1:0"]
    helps = re.findall(r"^  --[\w-]+(?: [A-Z_]+|\b.*\})?\s+(\S.*)$", text, re.M)
    assert len(helps) > 10
    assert [each for each in helps if LEANS_ON_ITS_NAME.match(each)] == []
