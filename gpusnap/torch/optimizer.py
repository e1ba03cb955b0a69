"""Where an optimizer keeps its state, so that this is saved first."""

from collections.abc import Iterable, Iterator, Mapping

import torch


def optimizer_memory(*optimizers: torch.optim.Optimizer) -> tuple[tuple[int, int], ...]:
    """Address and length in bytes of the optimizers' state in host memory, sorted.

    State on a GPU has no address in the process: the driver puts it with all else of the device
    into memory of its own choice, where nothing tells the two apart.
    """
    tensors = (tensor for each in optimizers for tensor in _tensors(each.state))
    storages = (each.untyped_storage() for each in tensors if each.device.type == "cpu")
    return tuple(sorted({(each.data_ptr(), each.nbytes()) for each in storages if each.nbytes()}))


def _tensors(state: object) -> Iterator[torch.Tensor]:
    """The tensors in nested dictionaries and lists; parameters, which are keys, are no state."""
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, Mapping):
        yield from _all_tensors(state.values())
    elif isinstance(state, list | tuple):
        yield from _all_tensors(state)


def _all_tensors(states: Iterable[object]) -> Iterator[torch.Tensor]:
    for state in states:
        yield from _tensors(state)
