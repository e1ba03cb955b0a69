"""Reads the codes of findings out of source files, through the functions that pass them on."""

import ast
from collections.abc import Iterator
from pathlib import Path


class Module:
    """One source file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.nodes = list(ast.walk(ast.parse(path.read_text())))
        functions = [node for node in self.nodes if isinstance(node, ast.FunctionDef)]
        self.functions = {function.name: function for function in functions}

    def codes(self) -> set[str]:
        """Every code that the file can give a finding, with ``*`` for a part filled in later.

        Raises:
            ValueError: A code is made in a way that cannot be read from here.
        """
        return {code for expression in self._expressions() for code in self._values(expression)}

    def _expressions(self) -> Iterator[ast.expr]:
        for node in self.nodes:
            name = _called(node)
            if isinstance(node, ast.Call) and (name == "Finding" or self._passes_on(name)):
                yield from (keyword.value for keyword in node.keywords if keyword.arg == "code")
                yield from node.args[self._position(name) :][:1]

    def _passes_on(self, name: str) -> bool:
        """True for a function of this file that makes findings with the code it is given."""
        function = self.functions.get(name)
        if function is None or function.returns is None:
            return False
        return "code" in _parameters(function) and "Finding" in ast.unparse(function.returns)

    def _position(self, name: str) -> int:
        """Where a code stands among a call's positional arguments; far off for Finding itself."""
        function = self.functions.get(name)
        return _parameters(function).index("code") if function else 99

    def _values(self, expression: ast.expr) -> Iterator[str]:
        match expression:
            case ast.Constant(value=str(code)):
                yield code
            case ast.JoinedStr(values=parts):
                yield "".join(map(_literal, parts))
            case ast.IfExp(body=body, orelse=orelse):
                yield from self._values(body)
                yield from self._values(orelse)
            case ast.Call() if _called(expression) in self.functions:
                for node in ast.walk(self.functions[_called(expression)]):
                    if isinstance(node, ast.Return) and node.value is not None:
                        yield from self._values(node.value)
            case ast.Name(id="code") if any(map(self._passes_on, self.functions)):
                pass  # given to a function whose callers are read instead
            case _:
                msg = f"{self.path}:{expression.lineno}: a finding's code cannot be read here"
                raise ValueError(msg)


def _parameters(function: ast.FunctionDef) -> list[str]:
    names = [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def _called(node: ast.AST) -> str:
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
    return ""


def _literal(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else "*"
