"""All files of a folder as one, for machines from which few files can be fetched."""

from __future__ import annotations

import tarfile
from pathlib import Path


def pack(folder: Path, archive: Path) -> None:
    """Write a ``.tar.gz`` of the folder, which unpacks to a folder of its name.

    An earlier archive stays whole until the new one is; tables that are being written may lack
    their last line, which a later run into the unpacked folder mends.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    new = archive.with_name(archive.name + ".tmp")
    skipped = {archive.resolve(), new.resolve()}
    with tarfile.open(new, "w:gz") as file:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.resolve() not in skipped:
                file.add(path, Path(folder.resolve().name) / path.relative_to(folder))
    new.replace(archive)
