"""`python -m foldlog`: the command line, where its script is not on the path."""

from foldlog.cli.main import main

if __name__ == "__main__":
    main()
