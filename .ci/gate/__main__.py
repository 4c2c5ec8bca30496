"""The gates. `make test`, `make verify` and others call this; see `--help`."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import coverage_report
import flakes
import steps
import verdict
from schedule import obey_signals


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=".ci/gate", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("test", help="what a change can break and only this level shows")
    commands.add_parser("verify", help="everything there is")
    commands.add_parser("fast", help="under two minutes: format, lint, types, house, native units")
    fuzz = commands.add_parser("fuzz", help="hostile bytes into every decoder")
    fuzz.add_argument("--minutes", type=int, default=1)
    repeat = commands.add_parser("flakes", help="repeat tests under load; a table of failure rates")
    repeat.add_argument("--folder", choices=steps.TIMED, action="append", help="default: all")
    repeat.add_argument("--times", type=int, default=20)
    repeat.add_argument("--burners", type=int, default=2, help="busy loops beside the tests")
    repeat.add_argument(
        "--slow", action="store_true", help="also tests that `make test` leaves out"
    )
    cover = commands.add_parser("coverage", help="print what `make verify` has measured")
    cover.add_argument("what", choices=("native", "python"))
    commands.add_parser("record", help="keep the times of the last `make test` in tests/times.json")
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    obey_signals()
    match arguments.command:
        case "test":
            good = verdict.run("test", steps.test())
        case "verify":
            coverage_report.forget()
            good = verdict.run("verify", steps.verify())
        case "fast":
            good = verdict.run("fast", steps.fast())
        case "fuzz":
            good = verdict.run("fuzz", steps.fuzz_gate(arguments.minutes))
        case "flakes":
            folders = arguments.folder or list(steps.TIMED)
            good = flakes.run(folders, arguments.times, arguments.burners, slow=arguments.slow)
        case "coverage":
            good = getattr(coverage_report, arguments.what)()
        case _:
            good = record()
    return 0 if good else 1


def record() -> bool:
    """tests/house compares what is recorded with the budgets."""
    last = json.loads(Path("build/gate.json").read_text())
    if last["gate"] != "test" or not last["green"]:
        print("record: the last gate was no green `make test`: run it first")
        return False
    shutil.copyfile("build/gate.json", "tests/times.json")
    return True


if __name__ == "__main__":
    raise SystemExit(main())
