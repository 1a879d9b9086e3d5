"""``python -m experiments`` is the command `phasewise`."""

from experiments.cli import main

if __name__ == "__main__":
    main()
