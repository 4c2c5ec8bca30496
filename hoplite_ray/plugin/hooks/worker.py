"""The start of a worker of a job that has the flag: the job's setup function calls `accept`."""

from __future__ import annotations

from collections.abc import Mapping

from hoplite_ray.config import Config
from hoplite_ray.plugin.process import job_options


def accept(options: Mapping[str, object]) -> None:
    """Remember the job's options; an error is kept for the first use. Never raises."""
    try:
        job_options.remember(None, is_given=True)
        job_options.remember(Config.from_options(options), is_given=True)
        # Imported here, so that a private name of Ray that has moved is an error that is kept.
        from hoplite_ray.plugin.direct import tables

        tables.enable_reading()
    except Exception as error:
        job_options.remember_error(error)
