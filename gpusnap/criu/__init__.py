"""CRIU: found or fetched, driven through its RPC, its failures explained.

The only module of gpusnap that starts CRIU.
"""

from gpusnap.criu.fetch import SUITE, install_private_criu
from gpusnap.criu.find import Criu, Passed, Search, find_criu, search_criu
from gpusnap.criu.images import inventory_plugins
from gpusnap.criu.private import private_criu_directory
from gpusnap.criu.request import DumpRequest, RestoreRequest, equivalent_command
from gpusnap.criu.session import Notify, Session

__all__ = [
    "SUITE",
    "Criu",
    "DumpRequest",
    "Notify",
    "Passed",
    "RestoreRequest",
    "Search",
    "Session",
    "equivalent_command",
    "find_criu",
    "install_private_criu",
    "inventory_plugins",
    "private_criu_directory",
    "search_criu",
]
