"""The way back: processes are made to run again by what the driver says."""

import pytest

from gpusnap import release
from gpusnap.errors import DeadlineError, DeviceError, GpusnapError
from gpusnap.types import DeviceMap, DeviceState
from gpusnap.worker import WorkerDied


class Driver:
    """One process in its hands, whose state is not told at first."""

    def __init__(self, *failures: GpusnapError) -> None:
        self._failures = list(failures)
        self.asked = 0
        self.state_now = DeviceState.CHECKPOINTED

    def state(self, pids: tuple[int, ...]) -> dict[int, DeviceState]:
        self.asked += 1
        if self._failures:
            raise self._failures.pop(0)
        return dict.fromkeys(pids, self.state_now)

    def restore(self, _pids: tuple[int, ...], _device_map: DeviceMap) -> None:
        self.state_now = DeviceState.LOCKED

    def unlock(self, _pids: tuple[int, ...]) -> None:
        self.state_now = DeviceState.RUNNING


def release_devices(driver: Driver) -> None:
    release.release_devices(driver, (1,))  # type: ignore[arg-type]


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_worker_that_dies_on_the_way_is_no_end(deaths: int) -> None:
    driver = Driver(*[WorkerDied("The driver worker ended (signal 9)")] * deaths)
    release_devices(driver)
    assert driver.state_now is DeviceState.RUNNING


def test_a_driver_that_fails_each_time_is_told() -> None:
    with pytest.raises(DeviceError, match="in no state"):
        release_devices(Driver(*[DeviceError("It is in no state", pid=1)] * 9))


def test_a_driver_that_does_not_answer_is_not_asked_again() -> None:
    driver = Driver(DeadlineError("The driver did not answer"))
    with pytest.raises(DeadlineError):
        release_devices(driver)
    assert driver.asked == 1


def test_a_process_whose_state_is_not_told_keeps_no_other_back() -> None:
    class Silent(Driver):
        """Nothing is told of process 2."""

        def state(self, pids: tuple[int, ...]) -> dict[int, DeviceState]:
            if 2 in pids:
                raise DeviceError("Process 2 cannot be reached", pid=2)
            return super().state(pids)

    driver = Silent()
    with pytest.raises(DeviceError, match="Process 2 cannot be reached"):
        release.release_devices(driver, (1, 2))  # type: ignore[arg-type]
    assert driver.state_now is DeviceState.RUNNING
