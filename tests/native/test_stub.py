"""The stub of the extension names what the extension holds."""

import ast
from pathlib import Path

from gpusnap._native import lib  # noqa: TID251  it is what is tested

STUB = Path(__file__).resolve().parents[2] / "gpusnap" / "_native.pyi"


def test_the_stub_is_complete() -> None:
    body = next(n for n in ast.parse(STUB.read_text()).body if isinstance(n, ast.ClassDef)).body
    functions = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    targets = (node.target for node in body if isinstance(node, ast.AnnAssign))
    constants = {target.id for target in targets if isinstance(target, ast.Name)}
    assert functions | constants == set(dir(lib))
