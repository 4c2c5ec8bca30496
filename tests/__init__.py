"""Tests of hoplite_ray; tests/conftest.py has what every test obeys."""
