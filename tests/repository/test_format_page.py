"""The format's page says all, and what it says is true."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpusnap.criu import Criu, DumpRequest, Session, search_criu
from gpusnap.mailbox import Mailbox
from gpusnap.repository import (
    FileDigest,
    Host,
    Manifest,
    PhaseTime,
    Repository,
    SavedOptions,
    Snapshot,
)
from gpusnap.repository.config import Config
from gpusnap.repository.layout import MANIFEST_DIGEST, RESERVED_NAMES
from gpusnap.repository.parts import PART
from gpusnap.types import (
    CodecUse,
    Device,
    DeviceImage,
    DeviceUse,
    Finding,
    Process,
    ProcessId,
    Region,
    SavedMemory,
)
from tests.datapath.memory import MIB, Memory
from tests.repository.samples import FILES, manifest, silent, take, take_memory

PAGE = (Path(__file__).parents[2] / "docs/reference/snapshot-format.md").read_text()
STRUCTS = (
    CodecUse,
    Config,
    Device,
    DeviceImage,
    DeviceUse,
    FileDigest,
    Finding,
    Host,
    Mailbox,
    Manifest,
    PhaseTime,
    Process,
    ProcessId,
    Region,
    SavedMemory,
    SavedOptions,
)


@pytest.mark.parametrize("struct", STRUCTS)
def test_every_field_is_explained(struct: type[msgspec.Struct]) -> None:
    rows = "\n".join(line for line in PAGE.splitlines() if line.startswith("|"))
    missing = {field.name for field in msgspec.structs.fields(struct)} - {
        *re.findall(r"`(\w+)`", rows)
    }
    assert missing == set()


def test_reserved_names_are_told() -> None:
    assert all(f"`{name}`" in PAGE for name in RESERVED_NAMES)


def check_by_hand(snapshot: Snapshot) -> subprocess.CompletedProcess[str]:
    command = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)[0]
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=snapshot.path,
        check=False,
        capture_output=True,
        text=True,
    )


def test_checking_by_hand(repository: Repository) -> None:
    snapshot = take(repository, "a")
    done = check_by_hand(snapshot)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        f"{path}: OK"
        for path in ("manifest.json", *(file.path for file in snapshot.manifest.files))
    ]
    (snapshot.path / "criu/core-7.img").write_bytes(b"Registers")
    assert check_by_hand(snapshot).returncode != 0


def test_checking_packs_by_hand(repository: Repository) -> None:
    snapshot = take_memory(repository, "a", Memory(bytes(range(256)) * (MIB // 256)))
    assert check_by_hand(snapshot).returncode == 0
    with (snapshot.regions / "000.pack").open("r+b") as file:
        file.seek(5000)
        file.write(b"damage")
    done = check_by_hand(snapshot)
    assert done.returncode != 0
    assert "regions/000.pack: FAILED" in done.stderr


def test_checking_large_files_by_hand(repository: Repository) -> None:
    snapshot = take(repository, "a", FILES | {"criu/pages-1.img": os.urandom(PART) + b"12345"})
    assert check_by_hand(snapshot).returncode == 0
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

    def check() -> str:
        command = [sys.executable, "-c", program]
        ran = subprocess.run(
            command, cwd=snapshot.path, check=False, capture_output=True, text=True
        )
        return ran.stderr

    assert check() == ""
    with (snapshot.images / "pages-1.img").open("r+b") as file:
        file.seek(PART + 2)
        file.write(b"\0\0\0")
    assert check() == "criu/pages-1.img: FAILED\n"
    done = check_by_hand(snapshot)
    assert done.returncode != 0
    assert "criu/pages-1.img: FAILED" in done.stderr


def test_the_digest_file(repository: Repository) -> None:
    data = (take(repository, "a").path / MANIFEST_DIGEST).read_bytes()
    assert re.fullmatch(rb"[0-9a-f]{64}  manifest\.json\n", data)
    assert len(data) == 80


@pytest.fixture
def criu(root: None) -> Criu:
    found = search_criu().criu
    if found is None:
        pytest.skip("No CRIU here: gpusnap setup-criu")
    return found


@pytest.fixture
def sleeping() -> Iterator[int]:
    closed = subprocess.DEVNULL
    command = ["sleep", "600"]
    with subprocess.Popen(
        command, start_new_session=True, stdin=closed, stdout=closed, stderr=closed
    ) as process:
        stat = Path(f"/proc/{process.pid}/stat")
        while stat.read_text().split()[1:3] != ["(sleep)", "S"]:  # first its loader runs
            time.sleep(0.01)
        yield process.pid
        process.kill()


@pytest.fixture
def dumped(repository: Repository, criu: Criu, sleeping: int) -> Snapshot:
    with repository.prepare("a") as draft, Session(criu) as session:
        request = DumpRequest(
            pid=sleeping,
            images=draft.images,
            work=draft.work,
            leave_running=True,
            timeout_us=60_000_000,
        )
        session.dump(request, lambda _script, _pid: True)
        return draft.publish(manifest("a", draft.digest(silent)))


def words(path: Path) -> list[int]:
    data = path.read_bytes()[:12]
    return [int.from_bytes(data[at : at + 4], "little") for at in range(0, 12, 4)]


def test_the_images_of_a_real_dump(dumped: Snapshot) -> None:
    assert check_by_hand(dumped).returncode == 0
    kinds = dict(re.findall(r"(\w+) (0x[0-9a-f]{8})", PAGE))
    common = re.findall(r"0 to 3 \| (0x[0-9a-f]{8})", PAGE)[0]
    assert words(dumped.images / "inventory.img")[0] == int(kinds.pop("inventory"), 16)
    for kind, magic in kinds.items():
        (image, *_) = sorted(dumped.images.glob(f"{kind}*.img"))
        first, second, length = words(image)
        assert (first, second) == (int(common, 16), int(magic, 16))
        assert 0 < length <= image.stat().st_size - 12
    pages = (dumped.images / "pages-1.img").stat().st_size
    assert pages > 0
    assert pages % 4096 == 0
