"""Measurements, each one command: `python -m bench.NAME` (or `make bench`). Never run by the tests."""
