"""Makes docs/plugins/hooks.md from the interface: ``python -m tests.hooks_page`` writes it."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/plugins/hooks.md"
SPECS = ROOT / "gpusnap/hookspecs.py"

_HEAD = """\
# The hooks

<!-- Made from gpusnap/hookspecs.py by `python -m tests.hooks_page`; a test compares them. -->

Structs and enums are those of `gpusnap.types`, errors those of `gpusnap.errors`.
"""
_CLASSES = {
    "BackendSpec": "## Hooks of a backend\n\nA backend implements all of them.",
    "PluginSpec": "## Hooks of any plugin\n\nA plugin implements what it needs, a backend too.",
}
_SECTION = re.compile(r"^(Args|Returns|Raises|When):\s*(.*)$")


def render() -> str:
    """The whole page."""
    source = SPECS.read_text()
    parts = [_HEAD.rstrip()]
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name in _CLASSES:
            parts.append(_CLASSES[node.name])
            hooks = (item for item in node.body if isinstance(item, ast.FunctionDef))
            parts += (_hook(hook, source) for hook in hooks)
    return "\n\n".join(parts) + "\n"


def _hook(hook: ast.FunctionDef, source: str) -> str:
    lines = source.splitlines()[hook.lineno - 1 : hook.body[0].lineno - 1]
    signature = textwrap.dedent("\n".join(lines)).removesuffix(":")
    text = inspect.cleandoc(ast.get_docstring(hook) or "").replace("``", "`")
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
    body = "\n\n".join(_paragraphs(text))
    return f"### {hook.name}\n\n```python\n{signature}\n```\n\n{body}"


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in text.split("\n\n"):
        first, _, rest = paragraph.partition("\n")
        section = _SECTION.match(first)
        if section is None:
            yield paragraph
        elif section[1] == "When":
            yield f"**When:** {section[2]}\n{rest}".rstrip()
        elif section[1] == "Returns":
            yield f"**Returns:** {textwrap.dedent(rest)}"
        else:
            yield f"**{section[1]}:**\n\n{_list(textwrap.dedent(rest))}"


def _list(text: str) -> str:
    return re.sub(r"^(\w+): ", r"- `\1`: ", text, flags=re.MULTILINE)


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(render())
