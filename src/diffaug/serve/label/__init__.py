"""Labelling: the questions, the answers on disk, agreement between people, and the files that training reads."""
