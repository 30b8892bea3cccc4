"""The paper's tables and figures as grids of ordinary runs."""
