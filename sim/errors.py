"""Errors that a user can mend: each is one line that says where, what was found and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PhasewiseError(Exception):
    """Base of all errors that end a command with one line instead of a traceback."""


class ConfigError(PhasewiseError):
    """A configuration says something that cannot be run."""


class TraceError(PhasewiseError):
    """A trace file holds something that cannot be read."""


class ProfileError(PhasewiseError):
    """A step time was asked for that the model at hand cannot give."""


class BeyondTablesError(ProfileError):
    """A step lies beyond what tables have measured, and the config refuses that."""


class StuckError(PhasewiseError):
    """A simulation makes no progress; names the request that does not advance."""


CONFIG_NAME = "config_name"
"""Attribute of a class that ships with a name in a config (`policies`); none of its subclasses has
that name."""


def called(part: object) -> str:
    """How users know a policy, router, order or the like.

    Args:
        part: An object of one of the classes of `policies`, or of somebody's own.

    Returns:
        Its name in a config where it ships with one, such as ``vllm-v1``; else that of its class,
        by which a config names it, too.
    """
    own = vars(type(part))
    return str(own.get(CONFIG_NAME, type(part).__name__))


def closest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that `word` was probably meant to be, or None.

    Of choices that `word` begins, as where only a unit is missing, the shortest one; else one that
    is spelled like it.
    """
    names = sorted(choices)
    begun = [choice for choice in names if word and choice.startswith(f"{word}_")]
    if begun:
        return min(begun, key=lambda choice: (len(choice), choice))
    return next(iter(difflib.get_close_matches(word, names, n=1, cutoff=0.5)), None)


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return a hint such as ``; did you mean sarathi?``, or the list of choices if none is near."""
    names = sorted(choices)
    close = closest(word, names)
    if close is not None:
        return f"; did you mean {close}?"
    return f"; choose one of {', '.join(names)}" if names else ""
