"""One table of all codes: sources, the user's page and ``--force`` agree with it."""

from pathlib import Path

import pytest

import gpusnap
from gpusnap.errors import UsageError
from gpusnap.findings import CODES, check_known_codes
from gpusnap.hookspecs import hookimpl
from gpusnap.plugins import Plugins
from gpusnap.testing.backend import SimulatedBackend
from gpusnap.types import BackendInfo
from tests.test_docs import ALL_CODES, EXPLAINED


class OwnCodes(SimulatedBackend):
    """A backend of others, with a code of its own."""

    @hookimpl
    def gpusnap_backend_info(self) -> BackendInfo:
        return BackendInfo(
            name="own",
            vendor="nobody",
            capabilities=frozenset(),
            finding_codes=frozenset({"own-trouble"}),
        )


@pytest.fixture
def plugins() -> Plugins:
    plugins = Plugins()
    plugins.register(OwnCodes(), "own", is_backend=True)
    return plugins


def test_the_page_explains_the_codes_of_the_table() -> None:
    assert EXPLAINED.keys() == CODES.keys()


@pytest.mark.parametrize("code", ALL_CODES)
def test_every_code_of_the_sources_is_in_the_table(code: str) -> None:
    prefix = code.partition("*")[0]
    assert code in CODES or ("*" in code and any(each.startswith(prefix) for each in CODES))


def test_a_known_code_may_be_forced(plugins: Plugins) -> None:
    assert check_known_codes(["io-uring", "own-trouble"], plugins) == {"io-uring", "own-trouble"}
    assert check_known_codes("terminal", plugins) == {"terminal"}


@pytest.mark.parametrize(
    ("code", "cure"),
    [
        ("io-urings", "Did you mean io-uring?"),
        ("own-truble", "Did you mean own-trouble?"),
        ("qqq", "gpusnap check PID shows the codes"),
    ],
)
def test_an_unknown_code_is_refused(plugins: Plugins, code: str, cure: str) -> None:
    with pytest.raises(UsageError, match=f"No finding has the code '{code}'") as caught:
        check_known_codes([code], plugins)
    assert caught.value.cure == cure


def test_each_operation_refuses_an_unknown_code(plugins: Plugins, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No finding has the code"):
        gpusnap.create_checkpoint(1, tmp_path / "r" / "s", force="nonsense", plugins=plugins)
    with pytest.raises(UsageError, match="No finding has the code"):
        gpusnap.restore_checkpoint(tmp_path, force="nonsense", plugins=plugins)
    with pytest.raises(UsageError, match="No finding has the code"):
        gpusnap.suspend(1, force="nonsense", plugins=plugins)
