"""`python -m diffaug` is the command line."""

from diffaug.cli import main

main()
