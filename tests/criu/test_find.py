"""Which CRIU is used and what is said of those passed over."""

import os
import sys
from pathlib import Path

import pytest

from gpusnap.criu import Criu, find_criu, private_criu_directory, search_criu
from gpusnap.criu.private import private_command
from gpusnap.errors import CriuError

# What Debian 12's CRIU prints for `criu check` on a kernel from 6.13 on
OLD_ON_NEW_KERNEL = """
Error (criu/util.c:642): exited, status=1
Error (criu/vdso.c:381): vdso: Unexpected rt vDSO area bounds
Error (criu/vdso.c:613): vdso: Failed to fill self vdso symtable
Error (criu/kerndat.c:1615): kerndat_vdso_fill_symtable failed when initializing kerndat.
Error (criu/crtools.c:260): Could not initialize kernel features detection.
"""


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUSNAP_CRIU", raising=False)
    monkeypatch.setenv("GPUSNAP_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def _program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def _fake(path: Path, *, version: str = "4.1.1", check: int = 0, said: str = "") -> Path:
    script = (
        f"#!{sys.executable} -SE\nimport sys\n"
        f"if sys.argv[1] == '--version':\n    print('Version: {version}')\n"
        f"else:\n    print({said!r}, file=sys.stderr)\n    sys.exit({check})\n"
    )
    return _program(path, script)


def _private(data: Path) -> Path:
    """A private copy whose loader is a script that runs the program it is given."""
    loader = data / "criu" / "lib" / "ld-linux-x86-64.so.2"
    _program(loader, '#!/bin/sh\nshift 2\nexec "$@"\n')
    return _fake(data / "criu" / "sbin" / "criu", version="4.2")


def test_without_any_the_cure_is_setup_criu() -> None:
    assert search_criu().criu is None
    with pytest.raises(CriuError, match="No usable CRIU was found") as caught:
        find_criu()
    assert "gpusnap setup-criu" in str(caught.value.cure)


def test_one_on_the_path_is_used(tmp_path: Path) -> None:
    program = _fake(tmp_path / "bin" / "criu")
    assert find_criu() == Criu(
        command=(str(program),), version=(4, 1, 1), source="path", path=str(program)
    )


def test_the_private_copy_is_used_through_its_loader(tmp_path: Path) -> None:
    program = _private(tmp_path / "data")
    found = find_criu()
    libraries = tmp_path / "data" / "criu" / "lib"
    loader = libraries / "ld-linux-x86-64.so.2"
    assert found.command == (str(loader), "--library-path", str(libraries), str(program))
    assert (found.source, found.version, found.version_text) == ("private", (4, 2, 0), "4.2")


def test_the_path_goes_before_the_private_copy(tmp_path: Path) -> None:
    _private(tmp_path / "data")
    _fake(tmp_path / "bin" / "criu")
    search = search_criu()
    assert search.criu is not None
    assert (search.criu.source, search.passed) == ("path", ())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"version": "none"}, r"It does not tell its version: Version: none"),
        ({"check": 1, "said": "Error (a.c:1): odd"}, r"`criu check` fails: CRIU failed: odd"),
        ({"check": 1}, r"`criu check` fails: CRIU failed without saying why"),
        (
            {"version": "3.17.1", "check": 1, "said": OLD_ON_NEW_KERNEL},
            r"`criu check` fails: This CRIU is too old for the kernel: it cannot read its vDSO",
        ),
    ],
    ids=["version", "check", "mute", "old"],
)
@pytest.mark.usefixtures("root")
def test_one_on_the_path_that_does_not_work_is_passed_over(
    tmp_path: Path, options: dict[str, str], reason: str
) -> None:
    program = _fake(tmp_path / "bin" / "criu", **options)  # type: ignore[arg-type]
    _private(tmp_path / "data")
    search = search_criu()
    assert search.criu is not None
    assert search.criu.source == "private"
    assert [(each.path, each.reason) for each in search.passed] == [(str(program), reason)]


@pytest.mark.usefixtures("root")
def test_what_was_passed_over_stands_in_the_error(tmp_path: Path) -> None:
    program = _fake(tmp_path / "bin" / "criu", version="3.17.1", check=1, said=OLD_ON_NEW_KERNEL)
    with pytest.raises(CriuError) as caught:
        find_criu()
    assert caught.value.details[0].startswith(
        f"{program}: `criu check` fails: This CRIU is too old"
    )


def test_a_named_one_goes_before_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake(tmp_path / "bin" / "criu")
    named = _fake(tmp_path / "own" / "criu", version="4.3")
    monkeypatch.setenv("GPUSNAP_CRIU", str(named))
    found = find_criu()
    assert (found.source, found.path, found.version) == ("environment", str(named), (4, 3, 0))


def test_a_named_private_folder_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _private(tmp_path / "copied")
    monkeypatch.setenv("GPUSNAP_CRIU", str(tmp_path / "copied" / "criu"))
    found = find_criu()
    assert (found.source, found.path) == ("environment", str(tmp_path / "copied" / "criu"))
    assert found.command == private_command(tmp_path / "copied" / "criu")


@pytest.mark.usefixtures("root")
def test_its_check_watches_a_folder_with_few_names(tmp_path: Path) -> None:
    script = f"#!/bin/sh\npwd >> {tmp_path}/folders\necho Version: 4.1.1\n"
    _program(tmp_path / "bin" / "criu", script)
    assert search_criu().criu is not None
    assert set((tmp_path / "folders").read_text().splitlines()) == {"/"}


@pytest.mark.parametrize("named", ["own/criu", "copied/criu"])
def test_one_named_from_here_is_started_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    _fake(tmp_path / "own" / "criu", version="4.2")
    _private(tmp_path / "copied")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUSNAP_CRIU", named)
    found = find_criu()
    assert (found.path, found.version) == (named, (4, 2, 0))
    assert all(Path(part).is_absolute() for part in found.command if "/" in part)


def test_one_on_a_path_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake(tmp_path / "own" / "criu")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "own")
    assert find_criu().command == (str(tmp_path / "own" / "criu"),)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda _path: None, "It cannot be started: No such file or directory"),
        (lambda path: path.write_text("#!/bin/sh\n"), "It cannot be started: Permission denied"),
        (lambda path: _program(path, "#!/bin/sh\nexit 3\n"), "It does not tell its version"),
    ],
    ids=["absent", "not-executable", "mute"],
)
def test_a_named_one_that_does_not_work_is_an_error_not_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: object, reason: str
) -> None:
    _fake(tmp_path / "bin" / "criu")
    make(tmp_path / "named")  # type: ignore[operator]
    monkeypatch.setenv("GPUSNAP_CRIU", str(tmp_path / "named"))
    with pytest.raises(CriuError, match=f"GPUSNAP_CRIU names cannot be used: {reason}") as caught:
        find_criu()
    assert "GPUSNAP_CRIU" in str(caught.value.cure)


def test_one_that_hangs_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpusnap.criu.find.CHECK_SECONDS", 0.2)
    _program(tmp_path / "bin" / "criu", "#!/bin/sh\nexec /bin/sleep 20\n")
    (passed,) = search_criu().passed
    assert passed.reason == "`criu --version` did not end within 0.2 s"


def test_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert private_criu_directory() == tmp_path / "data" / "criu"
    monkeypatch.delenv("GPUSNAP_DATA_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", "/xdg")
    assert private_criu_directory() == Path("/xdg/gpusnap/criu")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/someone")
    assert private_criu_directory() == Path("/home/someone/.local/share/gpusnap/criu")


def test_the_real_one_answers_quickly(criu: Criu) -> None:
    assert criu.version >= (4, 0, 0)
    assert os.access(criu.command[0], os.X_OK)
