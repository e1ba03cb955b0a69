"""The conformance suite: what every backend has to do, as pytest tests for anyone's backend.

::

    import pytest

    from gpusnap.testing.conformance import BackendConformance

    class TestMyBackend(BackendConformance):
        @pytest.fixture
        def backend(self): ...

        @pytest.fixture
        def start_process(self): ...

Tests of what the backend's capabilities lack are skipped with the capability's name. The suite
needs neither root nor CRIU, only a device and a program that uses it.
"""

from gpusnap.testing.conformance.answers import AnswersConformance
from gpusnap.testing.conformance.cycle import CycleConformance
from gpusnap.testing.conformance.matching import MatchingConformance
from gpusnap.testing.conformance.programs import DeviceProgram, StartProcess

__all__ = ["BackendConformance", "DeviceProgram", "StartProcess"]


class BackendConformance(AnswersConformance, MatchingConformance, CycleConformance):
    """All tests; a subclass named ``Test...`` overrides the fixtures it inherits.

    Override ``backend`` and ``start_process``, see :class:`.fixtures.Fixtures`.
    """
