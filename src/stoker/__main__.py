"""`python -m stoker`: the command line."""

from stoker.cli.main import main

main()
