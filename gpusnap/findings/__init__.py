"""What stands in the way of a checkpoint, named before anything is touched.

``tree`` looks at the processes, one module a subject; ``host`` at the machine; ``needs`` says
what CRIU has to be given; ``codes`` lists every code that a finding can carry.
"""

from gpusnap.findings.codes import CODES, check_known_codes
from gpusnap.findings.files import deleted_files
from gpusnap.findings.host import check_criu, check_privileges
from gpusnap.findings.needs import Choice, Needs, Wishes
from gpusnap.findings.tree import Inspected, inspect_tree
from gpusnap.findings.view import look

__all__ = [
    "CODES",
    "Choice",
    "Inspected",
    "Needs",
    "Wishes",
    "check_criu",
    "check_known_codes",
    "check_privileges",
    "deleted_files",
    "inspect_tree",
    "look",
]
