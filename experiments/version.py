"""The version, told once: the wheel, `phasewise --version` and every bundle take it from here."""

__version__ = "0.1.0"
