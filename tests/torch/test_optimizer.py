import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

from gpusnap.torch import optimizer_memory


def trained(kind: type[torch.optim.Optimizer], device: str = "cpu") -> torch.optim.Optimizer:
    layer = torch.nn.Linear(8, 4, device=device)
    optimizer = kind(layer.parameters())
    points = torch.ones(2, 8, device=device)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = layer(points).square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return optimizer


def places(*tensors: torch.Tensor) -> set[tuple[int, int]]:
    return {(each.data_ptr(), each.nbytes) for each in tensors}


def test_moments_are_found_and_parameters_are_not() -> None:
    optimizer = trained(torch.optim.AdamW)
    states = [state for parameter in optimizer.state.values() for state in parameter.values()]
    assert len(states) == 6
    found = optimizer_memory(optimizer)
    assert set(found) == places(*states)
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    assert not places(*parameters) & set(found)
    assert list(found) == sorted(found)


def test_nested_state_is_found() -> None:
    optimizer = trained(torch.optim.LBFGS)
    (state,) = optimizer.state.values()
    assert places(state["d"], *state["old_dirs"]) <= set(optimizer_memory(optimizer))


def test_two_views_of_one_memory_count_once() -> None:
    optimizer = trained(torch.optim.AdamW)
    whole = torch.zeros(8)
    optimizer.state = {0: {"first": whole[:4], "second": whole[4:]}}
    assert optimizer_memory(optimizer, optimizer) == ((whole.data_ptr(), 32),)


def test_state_that_is_no_host_memory_has_no_place() -> None:
    assert optimizer_memory(trained(torch.optim.SGD)) == ()
    assert optimizer_memory() == ()
    optimizer = trained(torch.optim.AdamW)
    optimizer.state = {0: {"moment": torch.zeros(4, device="meta"), "empty": torch.zeros(0)}}
    assert optimizer_memory(optimizer) == ()
