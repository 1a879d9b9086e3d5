"""``python -m experiments`` is the command `phasewise`."""

from phasewise import main

if __name__ == "__main__":
    main()
