"""What to say where a folder was to be and a file is."""

from __future__ import annotations

from pathlib import Path


def blocking_file(path: Path, error: OSError) -> str:
    """``PATH: FILE is a file, not a folder``, where that is why a path cannot be used; else empty.

    Args:
        path: That was to be written.
        error: What the system said.
    """
    if not isinstance(error, FileExistsError | NotADirectoryError):
        return ""
    files = [each for each in (path, *path.parents) if each.is_file()]
    if not files:
        return ""
    return f"{path}: {'' if files[0] == path else f'{files[0]} '}is a file, not a folder"
