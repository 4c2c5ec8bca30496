"""The steward's thread that finds what the dead have left, without Ray."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hoplite_ray.plugin import steward


class End(BaseException):
    """Ends the thread's loop."""


def test_the_thread_goes_on_after_any_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(steward, "_REAP_EVERY_S", 0.0)
    errors = iter([ValueError("does not fit"), OSError("too many"), End()])

    def of_the_dead() -> None:
        raise next(errors)

    half = SimpleNamespace(_journals=SimpleNamespace(of_the_dead=of_the_dead), _collect=False)
    with pytest.raises(End):
        steward.Steward._reap(half)  # type: ignore[arg-type]
    assert [each.getMessage() for each in caplog.records] == [
        "orphans are left for later: does not fit",
        "orphans are left for later: too many",
    ]
