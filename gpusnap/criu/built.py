"""Files that were compiled with this installation and are no Python modules."""

from importlib.util import find_spec
from pathlib import Path

from gpusnap.errors import NotFoundError


def built_file(folder: str, name: str, what: str) -> Path:
    """A file as it was built with this installation.

    Args:
        folder: Its folder in the package.
        name: What it is called.
        what: What it is, for the error.

    Raises:
        NotFoundError: There is none.
    """
    # An editable installation has its compiled files in another folder than its modules
    spec = find_spec("gpusnap")
    for place in (spec and spec.submodule_search_locations) or ():
        path = Path(place, folder, name).absolute()
        if path.is_file():
            return path
    raise NotFoundError(f"{what} was not built with this installation of gpusnap")
