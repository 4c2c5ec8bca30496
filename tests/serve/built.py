"""An application as a program has it, for `serve build`."""

from __future__ import annotations

from hoplite_ray.serve import pipeline
from tests.serve.applications import Through

app = pipeline(first=Through, last=Through.after("first"), replicas=1)
