"""Grids of training runs: specified in YAML, run, compared, and shown as tables and figures."""
