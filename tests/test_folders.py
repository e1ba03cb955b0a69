"""Where lasting data lies, and what is said where nobody can know."""

import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from gpusnap.errors import UsageError
from gpusnap.folders import data_directory, default_repository


@pytest.mark.parametrize(
    ("environment", "data", "repository"),
    [
        ({"GPUSNAP_REPO": "/r", "XDG_DATA_HOME": "/x"}, "/x/gpusnap", "/r"),
        ({"GPUSNAP_REPO": "rel"}, "/home/u/.local/share/gpusnap", "rel"),
        ({"GPUSNAP_REPO": "~/r", "GPUSNAP_DATA_DIR": "~/d"}, "/home/u/d", "/home/u/r"),
        ({"GPUSNAP_DATA_DIR": "/d", "XDG_DATA_HOME": "/x"}, "/d", "/d/repository"),
        ({"GPUSNAP_REPO": "", "XDG_DATA_HOME": "/x"}, "/x/gpusnap", "/x/gpusnap/repository"),
        (
            {"XDG_DATA_HOME": "rel"},
            "/home/u/.local/share/gpusnap",
            "/home/u/.local/share/gpusnap/repository",
        ),
    ],
)
def test_folders(
    environment: dict[str, str], data: str, repository: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    assert data_directory(environment) == Path(data)
    assert default_repository(environment) == Path(repository)


def nobody(_user: int) -> NoReturn:
    raise KeyError


@pytest.mark.parametrize("use", [data_directory, default_repository])
def test_a_user_without_a_home(
    use: Callable[[dict[str, str]], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(UsageError, match=r"home folder .* is not known") as caught:
        use({})
    assert caught.value.cure == "Set HOME, GPUSNAP_REPO or GPUSNAP_DATA_DIR"
    assert use({"GPUSNAP_DATA_DIR": "/d"}).parts[:2] == ("/", "d")


def test_the_home_of_nobody() -> None:
    with pytest.raises(UsageError, match="The home folder in '~nobody-known/x' is not known"):
        default_repository({**os.environ, "GPUSNAP_REPO": "~nobody-known/x"})
