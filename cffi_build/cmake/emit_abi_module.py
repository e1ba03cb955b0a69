"""Write the pure-Python ABI module of a cdef header.

``cffi-gen-src`` only writes C source, so this does the same for out-of-line ABI mode.

Usage: emit_abi_module.py MODULE CDEF OUTPUT
"""

import sys
from pathlib import Path

from cffi import FFI


def emit(module: str, cdef: Path, output: Path) -> None:
    """Parse ``cdef`` and write the module that declares what it holds."""
    builder = FFI()
    builder.set_source(module, None)
    builder.cdef(cdef.read_text(encoding="utf-8"))
    output.unlink(missing_ok=True)  # cffi leaves an unchanged file alone, and ninja then reruns
    builder.emit_python_code(str(output))


if __name__ == "__main__":
    emit(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
