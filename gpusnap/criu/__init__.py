"""CRIU: found or fetched, driven through its RPC, its failures explained.

The only module of gpusnap that starts CRIU.
"""

from gpusnap.criu.fetch import SUITE, install_private_criu
from gpusnap.criu.find import Criu, Passed, Search, find_criu, search_criu
from gpusnap.criu.guard import GUARD_NAME, Range, guarded, write_ranges
from gpusnap.criu.guard_check import guard_works
from gpusnap.criu.images import (
    AbstractName,
    OpenFile,
    SocketFile,
    abstract_names,
    advise_huge_pages,
    inventory_plugins,
    open_files,
    rename_sockets,
    socket_files,
    taken_pids,
)
from gpusnap.criu.images import tree_pids as image_pids
from gpusnap.criu.namespace import NAMESPACE_INIT, Entrance, Leash, Namespace, Overlay
from gpusnap.criu.private import private_criu_directory
from gpusnap.criu.request import DumpRequest, RestoreRequest, equivalent_command
from gpusnap.criu.seal import seal, unsealed
from gpusnap.criu.session import Notify, Session

__all__ = [
    "GUARD_NAME",
    "NAMESPACE_INIT",
    "SUITE",
    "AbstractName",
    "Criu",
    "DumpRequest",
    "Entrance",
    "Leash",
    "Namespace",
    "Notify",
    "OpenFile",
    "Overlay",
    "Passed",
    "Range",
    "RestoreRequest",
    "Search",
    "Session",
    "SocketFile",
    "abstract_names",
    "advise_huge_pages",
    "equivalent_command",
    "find_criu",
    "guard_works",
    "guarded",
    "image_pids",
    "install_private_criu",
    "inventory_plugins",
    "open_files",
    "private_criu_directory",
    "rename_sockets",
    "seal",
    "search_criu",
    "socket_files",
    "taken_pids",
    "unsealed",
    "write_ranges",
]
