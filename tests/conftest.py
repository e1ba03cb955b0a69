"""What every test gets."""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# The programs that tests start need not compile the package each time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Led from outside a PID namespace, a session has no number here: CRIU saves none of its jobs.
if os.getsid(0) == 0:
    os.setsid()

# A shell that begins something in the background, or nohup, has it and its programs ignore these.
for _number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Shared machines pause: a slow example is no failure.
settings.register_profile(
    "gpusnap", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("gpusnap")


@pytest.fixture
def root() -> None:
    """Skip where the test is not run by root."""
    if os.geteuid() != 0:
        pytest.skip("Needs root: CRIU is used as root")
