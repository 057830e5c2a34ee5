"""`python -m levo`: the command line, without an installed script."""

from levo.cli import main

main()
