"""`python -m experiments` is the `kvjax` command."""

from experiments.entry import command

if __name__ == "__main__":
    command()
