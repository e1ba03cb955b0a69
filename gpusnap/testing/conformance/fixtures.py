"""The fixtures that a user of the suite overrides, and those built on them."""

import pytest

from gpusnap.testing.conformance.hooks import Hooks
from gpusnap.testing.conformance.programs import DeviceProgram, StartProcess, await_steps
from gpusnap.types import Capability


class Fixtures:
    """What all parts of the suite share.

    Attributes:
        lock_timeout_us: Time a lock may wait for the program's work, in microseconds.
    """

    lock_timeout_us = 10_000_000

    @pytest.fixture
    def backend(self) -> object:
        """Override: the backend object, as its entry point gives it."""
        msg = "Override the fixture backend with one that returns your backend object"
        raise NotImplementedError(msg)

    @pytest.fixture
    def start_process(self) -> StartProcess:
        """Override: a function that starts a program on the device and returns it.

        The fixture also ends the programs after the test, whatever state they are in.
        """
        msg = "Override the fixture start_process with one that returns a function"
        raise NotImplementedError(msg)

    @pytest.fixture
    def hooks(self, backend: object) -> Hooks:
        """The hooks of the backend under test."""
        return Hooks(backend)

    @pytest.fixture
    def program(self, start_process: StartProcess) -> DeviceProgram:
        """A program that computes."""
        program = start_process()
        await_steps(program)
        return program


def need(hooks: Hooks, capability: Capability) -> None:
    """Skip the test where the backend does not declare a capability."""
    if not hooks.offers(capability):
        pytest.skip(f"The backend does not declare {capability.value}")
