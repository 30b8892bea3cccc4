"""The one exception a user sees for bad input: its text says what was wrong, where, and what to do."""


class DiffaugError(Exception):
    """Something the user can put right. The command line prints its text alone, without a traceback."""
