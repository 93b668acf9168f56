"""`python -m respsd.cli`: the `respsd` command where its script is not on the path."""

from respsd.cli.main import main

if __name__ == "__main__":
    main()
