"""Tags: words that a user gives a snapshot, to list and to keep it by."""

from collections.abc import Callable, Iterable

from gpusnap.errors import UsageError
from gpusnap.repository.storage import printable

MAX_BYTES = 200

_RULES: tuple[tuple[Callable[[str], bool], str], ...] = (
    (lambda tag: not tag, "is empty"),
    # Lists of tags are separated by the one in tables, by the other in environment variables.
    (lambda tag: "," in tag, "holds a comma"),
    (lambda tag: " " in tag, "holds a space"),
    (lambda tag: not tag.isprintable(), "holds a character that cannot be printed"),
    (lambda tag: len(tag.encode(errors="replace")) > MAX_BYTES, f"exceeds {MAX_BYTES} bytes"),
)


def tag_problem(tag: object) -> str | None:
    """What forbids a tag, as the end of a sentence, or None."""
    if not isinstance(tag, str):
        return "is not text"
    return next((words for forbidden, words in _RULES if forbidden(tag)), None)


def check_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags, each once, in the order given; a single one may come by itself.

    Raises:
        UsageError: One can be none.
    """
    found = (tags,) if isinstance(tags, str) else tuple(tags)
    for tag in found:
        words = tag_problem(tag)
        if words:
            raise UsageError(
                f"The tag '{printable(tag)[:MAX_BYTES]}' {words}",
                cure="Use letters, digits, '.', '_' and '-'",
            )
    return tuple(dict.fromkeys(found))
