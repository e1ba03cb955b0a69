"""The private copy: made whole, or not at all."""

import fcntl
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from gpusnap.criu import fetch, install_private_criu, private_criu_directory
from gpusnap.criu.private import Receipt
from gpusnap.errors import BusyError, CriuError, GpusnapError, NotFoundError

pytestmark = pytest.mark.skipif(shutil.which("apt-get") is None, reason="Needs apt")


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder."""
    monkeypatch.setenv("GPUSNAP_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def _use_sources(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this text be all of the machine's sources."""
    sources, parts, settings = folder / "sources.list", folder / "parts", folder / "apt.conf"
    parts.mkdir()
    sources.write_text(text)
    settings.write_text(f'Dir::Etc::sourcelist "{sources}";\nDir::Etc::sourceparts "{parts}";\n')
    monkeypatch.setenv("APT_CONFIG", str(settings))


def _leftovers(data: Path) -> list[str]:
    return sorted(path.name for path in data.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_copy_is_made_from_the_machine_s_mirror(data: Path) -> None:
    said: list[str] = []
    try:
        made = install_private_criu(said.append)
    except GpusnapError as error:
        if "cannot be reached" in error.text or "No Debian mirror" in error.text:
            pytest.skip(f"{error.text}")
        raise
    assert made.version >= (4, 1, 0)
    assert made.path == str(data / "criu") == str(private_criu_directory())
    assert _leftovers(data) == [".criu.lock", "criu"]
    receipt = msgspec.json.decode((data / "criu/receipt.json").read_bytes(), type=Receipt)
    assert receipt.suite == "trixie"
    assert {"criu", "libc6"} <= {package.name for package in receipt.packages}
    assert all(len(package.sha256) == 64 for package in receipt.packages)
    assert said[-1] == "Trying the copy"

    moved = data / "elsewhere"
    (data / "criu").rename(moved)
    fetch._check_libraries(moved)
    assert fetch._try(moved).version == made.version


def test_no_mirror(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _use_sources(tmp_path, "deb http://u.example/ubuntu noble main\n", monkeypatch)
    with pytest.raises(NotFoundError, match="No Debian mirror") as caught:
        install_private_criu(lambda _: None)
    assert "GPUSNAP_CRIU" in str(caught.value.cure)
    assert _leftovers(data) == [".criu.lock"]


def test_no_network(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _use_sources(tmp_path, "deb http://127.0.0.1:9/debian bookworm main\n", monkeypatch)
    with pytest.raises(GpusnapError, match="cannot be reached"):
        install_private_criu(lambda _: None)
    assert _leftovers(data) == [".criu.lock"]


def test_a_failure_keeps_the_copy_that_is_there(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data / "criu" / "sbin").mkdir(parents=True)
    (data / ".criu-new-left-by-a-kill").mkdir()
    _use_sources(tmp_path, "deb http://127.0.0.1:9/debian bookworm main\n", monkeypatch)
    with pytest.raises(GpusnapError, match="cannot be reached"):
        install_private_criu(lambda _: None)
    assert _leftovers(data) == [".criu.lock", "criu"]
    assert (data / "criu" / "sbin").is_dir()


def test_no_apt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotFoundError, match="apt-config is not on this machine") as caught:
        install_private_criu(lambda _: None)
    assert "GPUSNAP_CRIU" in str(caught.value.cure)


def test_two_at_once(data: Path) -> None:
    data.mkdir()
    with (data / ".criu.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match="Another gpusnap is making"):
            install_private_criu(lambda _: None)


def test_a_data_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GPUSNAP_DATA_DIR", str(tmp_path / "file" / "data"))
    with pytest.raises(GpusnapError, match=r"could not be written: .*Not a directory") as caught:
        install_private_criu(lambda _: None)
    assert "GPUSNAP_DATA_DIR" in str(caught.value.cure)


def _package(folder: Path, name: str, files: dict[str, bytes]) -> Path:
    """A Debian package with these files."""
    tree = folder / name
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(
        f"Package: {name}\nVersion: 1:2.0\nArchitecture: all\nMaintainer: a <a@b.example>\n"
        "Description: x\n"
    )
    for path, content in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(content)
    made = folder / f"{name}_1%3a2.0_all.deb"
    subprocess.run(["dpkg-deb", "-b", str(tree), str(made)], check=True, capture_output=True)
    return made


def test_only_the_program_and_flat_libraries_are_taken(tmp_path: Path) -> None:
    libraries = "usr/lib/x86_64-linux-gnu"
    package = _package(
        tmp_path,
        "criu",
        {
            "usr/sbin/criu": b"program",
            f"{libraries}/liba.so.1.0": b"a",
            f"{libraries}/gconv/b.so": b"b",
            "usr/share/doc/criu/copyright": b"c",
        },
    )
    other = tmp_path / "more" / "libs"
    (other / libraries).mkdir(parents=True)
    (other / libraries / "liba.so.1").symlink_to("liba.so.1.0")
    (other / libraries / "libout.so.1").symlink_to("/usr/lib/libout.so.1")
    links = _package(tmp_path / "more", "libs", {})
    place = tmp_path / "place"
    place.mkdir()
    fetch._assemble((package, links), tmp_path / "unpacked", place, lambda _: None)
    assert sorted(path.name for path in (place / "lib").iterdir()) == ["liba.so.1", "liba.so.1.0"]
    assert (place / "lib" / "liba.so.1").read_bytes() == b"a"
    assert (place / "sbin" / "criu").read_bytes() == b"program"
    described = fetch._describe(package)
    assert (described.name, described.version, described.architecture) == ("criu", "1:2.0", "all")


def test_a_package_that_is_damaged(tmp_path: Path) -> None:
    package = tmp_path / "criu_1_all.deb"
    package.write_bytes(b"!<arch>\nnot a package")
    with pytest.raises(GpusnapError, match=r"criu_1_all\.deb could not be unpacked") as caught:
        fetch._unpack(package, tmp_path / "unpacked")
    assert caught.value.details


@pytest.mark.usefixtures("root")
def test_no_space(tmp_path: Path) -> None:
    package = _package(tmp_path, "criu", {"usr/sbin/criu": bytes(3 << 20)})
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)], check=True)
    try:
        with (
            pytest.raises(GpusnapError, match="No space left on device"),
            fetch._plain_errors(),
        ):
            fetch._assemble((package,), tmp_path / "unpacked", place, lambda _: None)
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_packages_without_criu(tmp_path: Path) -> None:
    with pytest.raises(CriuError, match="hold no CRIU"):
        fetch._check_libraries(tmp_path)
