"""Options: validated once, by name, with what is allowed in the error."""

from __future__ import annotations

from pathlib import Path

import pytest

from hoplite_ray import config as options
from hoplite_ray.config import Config, Memory, arena_bytes, native_value, shown

GIB = 1 << 30


def test_only_what_was_set_is_explicit() -> None:
    assert Config().explicit() == {}
    assert Config(arena_bytes=GIB).explicit() == {"arena_bytes": GIB}
    assert Config.from_options({"reduce_stripes": 0}).explicit() == {"reduce_stripes": 0}


@pytest.mark.parametrize("value", ["1g", 1.5, True, 0, -1, 1 << 60])
def test_a_wrong_value_is_refused_with_its_range(value: object) -> None:
    with pytest.raises(ValueError, match=r"'arena_bytes' is .*; it takes an int from 1048576 to"):
        Config.from_options({"arena_bytes": value})


def test_an_unknown_option_lists_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"'arena' is unknown; options are arena_bytes, broadcast"):
        Config.from_options({"arena": GIB})


def test_the_environment_is_read_by_name() -> None:
    config = Config.from_environment({"HOPLITE_RAY_ARENA_BYTES": str(GIB), "HOPLITE_RAY": "x"})
    assert config == Config(arena_bytes=GIB)


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(ValueError, match=r"HOPLITE_RAY_ARENA_BYTES='1g' is no integer"):
        Config.from_environment({"HOPLITE_RAY_ARENA_BYTES": "1g"})


@pytest.mark.parametrize("name", ["HOPLITE_RAY_WHEN_FULL", "HOPLITE_RAY_ARENA_BYTES"])
def test_a_wrong_word_is_named_with_what_is_allowed(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}='often' is .*; it takes .*; correct or unset"):
        Config.from_environment({name: "often"})
    with pytest.raises(ValueError, match=r"'when_full' is 1; it takes 'wait' or 'fail'"):
        Config(when_full=1)  # type: ignore[arg-type]  # that is what is tried


def test_a_variable_that_nobody_reads_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(options, "_warned_of", set())
    known = {f"HOPLITE_RAY_{name}": "1" for name in ("PROGRESS", "LINK_MBIT")}
    wrong = {"HOPLITE_RAY_ARENA_BYTE": "1", "hoplite_ray_progress": "0", "HOPLITE_RAY_XYZZY": ""}
    for _ in range(2):
        Config.from_environment({**known, **wrong, "HOPLITE_RAYS": "0"})
        options.world_transport(wrong)
    assert [each.getMessage() for each in caplog.records] == [
        "HOPLITE_RAY_ARENA_BYTE is set, and nobody reads it: is HOPLITE_RAY_ARENA_BYTES meant?",
        "hoplite_ray_progress is set, and nobody reads it: is HOPLITE_RAY_PROGRESS meant?",
        "HOPLITE_RAY_XYZZY is set, and nobody reads it: it can be unset",
    ]


def test_whether_data_is_encrypted_is_said_by_a_word() -> None:
    assert native_value("data_tls", "on") == 1
    assert Config.from_environment({"HOPLITE_RAY_DATA_TLS": "on"}).data_tls == "on"
    with pytest.raises(ValueError, match="'data_tls' is True; it takes 'off' or 'on'"):
        Config.from_options({"data_tls": True})


def test_words_are_read_by_name() -> None:
    config = Config.from_environment({"HOPLITE_RAY_WHEN_FULL": "fail"})
    assert config.explicit() == {"when_full": "fail"}
    assert native_value("when_full", "fail") == 1
    assert native_value("reduce_stripes", 3) == 3
    assert (shown("when_full", 1), shown("when_full", 9), shown("reduce_stripes", 3)) == (
        "fail",
        9,
        3,
    )


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPLITE_RAY_BROADCAST_STRIPES", "3")
    assert Config.from_environment().broadcast_stripes == 3


def test_the_arena_is_a_fifth_of_memory_in_whole_pages() -> None:
    assert arena_bytes(Config(), Memory(10 * GIB, 8 * GIB)) == 2 * GIB
    assert arena_bytes(Config(arena_bytes=GIB + 1), Memory(10 * GIB, 8 * GIB)) == GIB + 4096


def test_an_arena_that_does_not_fit_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=rf"{3 * GIB} bytes does not fit: {2 * GIB} of {4 * GIB}"):
        arena_bytes(Config(arena_bytes=3 * GIB), Memory(4 * GIB, 2 * GIB))


def machine(root: Path, files: dict[str, str]) -> Path:
    files = {"proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 6291456 kB\n", **files}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_memory_of_a_plain_machine(tmp_path: Path) -> None:
    assert Memory.read(machine(tmp_path, {})) == Memory(8 * GIB, 6 * GIB)


CONTROL_GROUPS = {
    "v2": {
        "proc/self/cgroup": "0::/user/job\n",
        "sys/fs/cgroup/user/job/memory.max": "max",
        "sys/fs/cgroup/user/job/memory.current": "1",
        "sys/fs/cgroup/user/memory.max": str(2 * GIB),
        "sys/fs/cgroup/user/memory.current": str(GIB // 2),
    },
    "v2 in a container": {
        "proc/self/cgroup": "0::/not/visible/here\n",
        "sys/fs/cgroup/memory.max": str(2 * GIB),
        "sys/fs/cgroup/memory.current": str(GIB // 2),
    },
    "v1": {
        "proc/self/cgroup": "3:cpu:/a\n2:memory:/job\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(2 * GIB),
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(GIB // 2),
        "sys/fs/cgroup/memory/memory.limit_in_bytes": str(1 << 63),
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "1",
    },
}


@pytest.mark.parametrize("files", CONTROL_GROUPS.values(), ids=CONTROL_GROUPS.keys())
def test_the_limit_of_a_control_group_counts(tmp_path: Path, files: dict[str, str]) -> None:
    assert Memory.read(machine(tmp_path, files)) == Memory(2 * GIB, GIB + GIB // 2)


def test_this_machine_has_memory() -> None:
    memory = Memory.read()
    assert 0 < memory.available_bytes <= memory.total_bytes
