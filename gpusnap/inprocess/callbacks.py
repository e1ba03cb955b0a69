"""Functions of the program that are called around a checkpoint of itself."""

import inspect
import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar, overload

from gpusnap.errors import CallbackError, UsageError
from gpusnap.inprocess.deadline import DeadlineMissed, call_within

DEFAULT_DEADLINE_S = 30.0

_Function = TypeVar("_Function", bound=Callable[..., object])


_NOT_PLAIN = (
    inspect.iscoroutinefunction,
    inspect.isgeneratorfunction,
    inspect.isasyncgenfunction,
)
"""What would do nothing if it is called."""


class Moment(StrEnum):
    """When a callback is called; the names of the functions that register it."""

    BEFORE = "before_checkpoint"
    AFTER = "after_checkpoint"
    RESTORED = "after_restore"


class _Callback(NamedTuple):
    function: Callable[..., object]
    deadline_s: float


_registered: dict[Moment, list[_Callback]] = {moment: [] for moment in Moment}


def _register(
    moment: Moment, function: _Function | None, deadline: float
) -> _Function | Callable[[_Function], _Function]:
    number: object = deadline
    if not isinstance(number, int | float) or not 0 < number <= threading.TIMEOUT_MAX:
        raise UsageError(f"The deadline of a callback is {deadline!r}, not a time in seconds")

    def add(found: _Function) -> _Function:
        plain: object = found
        if not callable(plain) or any(is_other(plain) for is_other in _NOT_PLAIN):
            raise UsageError(f"{moment.value} takes a plain function, not {found!r}")
        _registered[moment].append(_Callback(found, deadline))
        return found

    return add if function is None else add(function)


@overload
def before_checkpoint(fn: _Function, deadline: float = ...) -> _Function: ...


@overload
def before_checkpoint(
    fn: None = None, deadline: float = ...
) -> Callable[[_Function], _Function]: ...


def before_checkpoint(
    fn: _Function | None = None, deadline: float = DEFAULT_DEADLINE_S
) -> _Function | Callable[[_Function], _Function]:
    """Have a function called before each checkpoint that the program asks for itself.

    Functions are called in the order in which they were registered, in the main thread. One that
    raises, or misses its deadline, ends the checkpoint: nothing is saved, every
    ``after_checkpoint`` function is called, and the program gets a CallbackError.

    Args:
        fn: The function, without required parameters; without it this is a decorator.
        deadline: Seconds that it may take.

    Raises:
        UsageError: It is no plain function, or the deadline is no time.
    """
    return _register(Moment.BEFORE, fn, deadline)


@overload
def after_checkpoint(fn: _Function, deadline: float = ...) -> _Function: ...


@overload
def after_checkpoint(
    fn: None = None, deadline: float = ...
) -> Callable[[_Function], _Function]: ...


def after_checkpoint(
    fn: _Function | None = None, deadline: float = DEFAULT_DEADLINE_S
) -> _Function | Callable[[_Function], _Function]:
    """Have a function called in the program that runs on after a checkpoint, or after a failed one.

    Functions are called in reverse order of their registration, in the main thread, all of them
    even if one raises. Ctrl-C or ``sys.exit()`` in one takes effect after the last.

    Args:
        fn: The function. If it has a required parameter it gets the :class:`Checkpointed`, None
            after a failure. Without it this is a decorator.
        deadline: Seconds that it may take.

    Raises:
        UsageError: It is no plain function, or the deadline is no time.
    """
    return _register(Moment.AFTER, fn, deadline)


@overload
def after_restore(fn: _Function, deadline: float = ...) -> _Function: ...


@overload
def after_restore(fn: None = None, deadline: float = ...) -> Callable[[_Function], _Function]: ...


def after_restore(
    fn: _Function | None = None, deadline: float = DEFAULT_DEADLINE_S
) -> _Function | Callable[[_Function], _Function]:
    """Have a function called in the program that a restore brought back.

    As :func:`after_checkpoint`, which is not called there.
    """
    return _register(Moment.RESTORED, fn, deadline)


def run_before() -> None:
    """Call what is to be called before a checkpoint.

    Raises:
        CallbackError: One raised, or missed its deadline; the others were not called.
    """
    for callback in tuple(_registered[Moment.BEFORE]):
        _call(Moment.BEFORE, callback, None)


def run_after(moment: Moment, result: object) -> None:
    """Call what is to be called afterwards, in reverse order and in any case all.

    Raises:
        CallbackError: The first that one raised; the others are its details.
    """
    failed: list[CallbackError] = []
    interruption: BaseException | None = None
    for callback in reversed(tuple(_registered[moment])):
        try:
            _call(moment, callback, result)
        except CallbackError as error:
            failed.append(error)
        except BaseException as error:  # noqa: BLE001 - Ctrl-C or sys.exit, which come after all
            interruption = error
    if interruption is not None:
        raise interruption
    if failed:
        first, *others = failed
        first.details += tuple(other.text for other in others)
        raise first


def _call(moment: Moment, callback: _Callback, result: object) -> None:
    function, deadline_s = callback
    name = getattr(function, "__qualname__", repr(function))
    try:
        call_within(deadline_s, function, *_arguments(function, result))
    except DeadlineMissed:
        msg = f"{name}, called by {moment.value}, did not end within {deadline_s:g} s"
        raise CallbackError(msg, callback=name) from None
    except Exception as error:
        msg = f"{name}, called by {moment.value}, raised {type(error).__name__}: {error}"
        raise CallbackError(msg, callback=name) from error


def _arguments(function: Callable[..., object], result: object) -> tuple[Any, ...]:
    """The result, for a function that cannot be called without."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return (result,)
    except ValueError:  # a function of C that does not tell
        return ()
    return ()
