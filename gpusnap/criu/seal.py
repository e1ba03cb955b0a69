"""Keeps a bare ``criu restore`` away from images that lack the memory saved past CRIU.

CRIU refuses images whose inventory names a plugin it does not have, but only where its plugin
folder exists: without one it looks at no names and would run the program on zeros. So the
inventory, without which no CRIU restores anything, gets another name in the snapshot.
"""

from pathlib import Path

INVENTORY = "inventory.img"
SEALED = "inventory.sealed"


def seal(images: Path) -> None:
    """Give the inventory of complete images the name that no CRIU looks for."""
    (images / INVENTORY).rename(images / SEALED)


def unsealed(images: Path, work: Path) -> Path:
    """A folder of links to sealed images under the names that CRIU knows.

    Args:
        images: Folder of the images.
        work: Existing folder that the links may lie in.
    """
    folder = work / "images"
    folder.mkdir()
    for image in images.resolve().iterdir():
        name = INVENTORY if image.name == SEALED else image.name
        (folder / name).symlink_to(image)
    return folder
