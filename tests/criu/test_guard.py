"""The guard in the real CRIU: exactly what is listed is hidden, and nothing is lost by it."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from gpusnap.criu import (
    GUARD_NAME,
    Criu,
    DumpRequest,
    Range,
    RestoreRequest,
    Session,
    guard_works,
    guarded,
    inventory_plugins,
    write_ranges,
)
from gpusnap.criu.guard import VARIABLE, guard_file
from gpusnap.criu.log import explain_failure
from gpusnap.errors import CriuError, PluginError, UsageError
from gpusnap.target import identity
from gpusnap.types import CriuOptions
from tests.criu.conftest import agree, dump_request, restore_request
from tests.criu.counters import Counter
from tests.criu.pages import GUARD_PAGES, PAGE, REGIONS, Layout, saved_pages, start_marked

READ_PAGEMAP = {"CRIU_FAULT": "135"}
"""Has CRIU read the pagemap file, as on kernels without PAGEMAP_SCAN."""
FAIL_AT_PAGES = {"CRIU_FAULT": "3"}
"""Has CRIU fail when it has written the pages of the first process."""

Start = Callable[..., Counter]


def guarded_dump(
    counter: Counter, ranges: Sequence[Range], environment: dict[str, str] | None = None
) -> DumpRequest:
    options = CriuOptions(environment=environment or {})
    return dump_request(counter, options=guarded(options, counter.work, ranges))


def guarded_restore(counter: Counter) -> RestoreRequest:
    return restore_request(counter, options=guarded(CriuOptions(), counter.work, None))


def some_of_each(layout: Layout, who: int = 0) -> list[Range]:
    """Beginnings, ends and middles of regions of every kind, and one whole."""
    return [
        layout.range(who, "before", 4),
        layout.range(who, "middle", 0, 2),
        layout.range(who, "middle", 3, 1),
        layout.range(who, "middle", 11, 1),
        layout.range(who, "locked", 2, 2),
        layout.range(who, "file", 1, 1),
        layout.range(who, "readonly"),
        layout.range(who, "none", 1, 2),
        layout.range(who, "wide", 17, 600),
        layout.range(who, "huge", 3, 700),
        layout.range(who, "last", 2, 1),
    ]


def all_pages(layout: Layout, who: int = 0) -> set[tuple[int, str, int]]:
    return layout.pages(layout.range(who, name) for name in REGIONS)


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("environment", [{}, READ_PAGEMAP], ids=["scan", "read"])
def test_exactly_what_is_listed_is_hidden(
    criu: Criu, start: Start, environment: dict[str, str]
) -> None:
    counter, layout = start_marked(start)
    ranges = some_of_each(layout)
    hidden = layout.pages(ranges)
    assert len(hidden) == sum(each.length for each in ranges) // PAGE
    Session(criu).dump(guarded_dump(counter, ranges, environment), agree)
    assert saved_pages(counter.images) == all_pages(layout) - hidden
    assert inventory_plugins(counter.images) == (GUARD_NAME,)
    assert counter.computes()


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("name", [name for name in REGIONS if name != "shared"])
def test_a_whole_region_beside_others(criu: Criu, start: Start, name: str) -> None:
    counter, layout = start_marked(start)
    Session(criu).dump(guarded_dump(counter, [layout.range(0, name)]), agree)
    assert saved_pages(counter.images) == {page for page in all_pages(layout) if page[1] != name}


@pytest.mark.usefixtures("root")
def test_many_small_ranges(criu: Criu, start: Start) -> None:
    counter, layout = start_marked(start)
    ranges = [layout.range(0, "wide", page, 1) for page in range(0, 700, 2)]
    ranges += [layout.range(0, "huge", page, 1) for page in range(1, 1024, 2)]
    Session(criu).dump(guarded_dump(counter, ranges), agree)
    assert saved_pages(counter.images) == all_pages(layout) - layout.pages(ranges)


@pytest.mark.usefixtures("root")
def test_a_tree_of_processes(criu: Criu, start: Start) -> None:
    """Two processes write pages of their own, the third shares those of the first."""
    counter, layout = start_marked(start, children=2)
    ranges = [
        layout.range(0, "middle", 2, 3),
        layout.range(0, "wide", 0, 300),
        layout.range(1, "middle", 4, 5),
        layout.range(1, "huge"),
        layout.range(2, "wide", 299, 2),
        layout.range(2, "last"),
    ]
    before = contents(layout)
    request = guarded_dump(counter, ranges)
    Session(criu).dump(msgspec.structs.replace(request, leave_running=False), agree)
    # The first and the third have the same pages: one is saved if either's is
    own = all_pages(layout) - layout.pages(ranges)
    shared = all_pages(layout, 2) - layout.pages(ranges)
    copied = {(0, name, page) for _, name, page in shared}
    second = all_pages(layout, 1) - layout.pages(ranges)
    found = saved_pages(counter.images)
    # Memory that all map is one, whose pages bear the number of the process that wrote last
    assert without_shared(found) == without_shared(own | copied | second)
    wait_gone(counter, layout)
    assert restored(criu, counter, layout) == zeroed(before, layout, ranges)


def without_shared(pages: set[tuple[int, str, int]]) -> set[tuple[int, str, int]]:
    return {page for page in pages if page[1] != "shared"}


def contents(layout: Layout) -> dict[tuple[int, str], bytes]:
    return {
        (who, name): layout.memory(who, name)
        for who in range(len(layout.family))
        for name in REGIONS
    }


def zeroed(
    before: dict[tuple[int, str], bytes], layout: Layout, ranges: Sequence[Range]
) -> dict[tuple[int, str], bytes]:
    after = {key: bytearray(data) for key, data in before.items()}
    for who, name, page in layout.pages(ranges):
        after[who, name][page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
    return {key: bytes(data) for key, data in after.items()}


def wait_gone(counter: Counter, layout: Layout) -> None:
    """Wait for the last of the tree: its session and group keep the root's number taken."""
    assert counter.wait_gone()
    deadline = time.monotonic() + 60
    while any(map(identity, layout.family)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def restored(criu: Criu, counter: Counter, layout: Layout) -> dict[tuple[int, str], bytes]:
    """The memory as CRIU brings it back, before the processes would run."""
    seen: list[dict[tuple[int, str], bytes]] = []

    def look(script: str, _pid: int | None) -> bool:
        if script == "post-restore":
            seen.append(contents(layout))
        return script != "post-restore"

    with pytest.raises(CriuError, match="told to stop at its stage 'post-restore'"):
        Session(criu).restore(guarded_restore(counter), look)
    return seen[0]


@pytest.mark.usefixtures("root")
def test_filled_at_post_restore_the_target_runs_on(criu: Criu, start: Start) -> None:
    counter, layout = start_marked(start)
    ranges = some_of_each(layout)
    before = contents(layout)
    Session(criu).dump(
        msgspec.structs.replace(guarded_dump(counter, ranges), leave_running=False), agree
    )
    assert counter.wait_gone()

    def fill(script: str, _pid: int | None) -> bool:
        if script == "post-restore":
            assert contents(layout) == zeroed(before, layout, ranges)
            with Path(f"/proc/{counter.pid}/mem").open("rb+", buffering=0) as memory:
                for (_, name), data in before.items():
                    if name != "shared":
                        memory.seek(layout.regions[name][0])
                        memory.write(data)
        return True

    Session(criu).restore(guarded_restore(counter), fill)
    assert contents(layout) == before
    assert counter.computes()


@pytest.mark.usefixtures("root")
def test_ranges_where_nothing_is_mapped_are_of_no_effect(criu: Criu, start: Start) -> None:
    counter, layout = start_marked(start)
    far = Range(counter.pid, 1 << 46, PAGE)
    other = msgspec.structs.replace(layout.range(0, "middle"), pid=counter.pid + 1)
    Session(criu).dump(guarded_dump(counter, [far, other]), agree)
    assert saved_pages(counter.images) == all_pages(layout)


@pytest.mark.usefixtures("root")
def test_hidden_guard_pages_of_the_kernel(criu: Criu, start: Start) -> None:
    counter, layout = start_marked(start, guards=True)
    ranges = [layout.range(0, "guards")]
    Session(criu).dump(guarded_dump(counter, ranges), agree)
    assert saved_pages(counter.images) == all_pages(layout) - layout.pages(ranges)


@pytest.mark.usefixtures("root")
def test_guard_pages_beside_what_is_hidden_are_left_to_criu(criu: Criu, start: Start) -> None:
    """CRIU 4.1 takes them for pages and fails to read them, 4.2 knows them."""
    counter, layout = start_marked(start, guards=True)
    ranges = [layout.range(0, "guards", 1, 2), layout.range(0, "guards", 4, 3)]
    request = guarded_dump(counter, ranges)
    if criu.version < (4, 2, 0):
        with pytest.raises(CriuError, match="splice"):
            Session(criu).dump(request, agree)
    else:
        Session(criu).dump(request, agree)
        guards = {(0, "guards", page) for page in GUARD_PAGES}
        assert saved_pages(counter.images) == all_pages(layout) - layout.pages(ranges) - guards
    assert counter.computes()


@pytest.mark.usefixtures("root")
def test_a_dump_that_fails_half_way_leaves_the_target_running(criu: Criu, start: Start) -> None:
    counter, layout = start_marked(start)
    before = contents(layout)
    ranges = some_of_each(layout)
    with pytest.raises(CriuError):
        Session(criu).dump(guarded_dump(counter, ranges, FAIL_AT_PAGES), agree)
    assert "ranges are kept out" in (counter.work / "dump.log").read_text()
    assert counter.computes()
    assert contents(layout) == before


@pytest.mark.usefixtures("root")
def test_a_refused_stage_leaves_the_target_running(criu: Criu, start: Start) -> None:
    counter, layout = start_marked(start)
    before = contents(layout)
    with pytest.raises(CriuError, match="told to stop"):
        Session(criu).dump(
            guarded_dump(counter, some_of_each(layout)), lambda script, _pid: script != "post-dump"
        )
    assert counter.computes()
    assert contents(layout) == before


@pytest.mark.usefixtures("root")
def test_criu_alone_refuses_the_images(criu: Criu, start: Start) -> None:
    counter, layout = start_marked(start)
    request = guarded_dump(counter, [layout.range(0, "middle")])
    Session(criu).dump(msgspec.structs.replace(request, leave_running=False), agree)
    assert counter.wait_gone()
    with pytest.raises(CriuError, match="needs CRIU's plugin gpusnap_guard"):
        Session(criu).restore(restore_request(counter), agree)
    assert not counter.exists()


@pytest.mark.usefixtures("root")
def test_without_a_list_the_guard_stays_away(criu: Criu, start: Start) -> None:
    counter, layout = start_marked(start)
    options = guarded(CriuOptions(), counter.work, None)
    Session(criu).dump(dump_request(counter, options=options, leave_running=False), agree)
    assert saved_pages(counter.images) == all_pages(layout)
    assert inventory_plugins(counter.images) == ()
    assert counter.wait_gone()
    Session(criu).restore(guarded_restore(counter), agree)
    assert counter.computes()


GOOD = "gpusnap-guard 1\n{pid} 100000000000 100000001000\nend 1\n"


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file"),
        ("", "no list of ranges"),
        (GOOD.replace(" 1\n", " 2\n", 1), "no list of ranges"),
        (GOOD.replace("end 1\n", ""), "cut short"),
        (GOOD.replace("end 1", "end 2"), "as many ranges"),
        (GOOD.replace("1000\nend", "1001\nend"), "whole pages"),
        (GOOD + "\n", "behind its end"),
    ],
)
def test_a_list_that_is_not_right_fails_the_dump(
    criu: Criu, counter: Counter, text: str | None, reason: str
) -> None:
    request = guarded_dump(counter, [])
    path = Path(request.options.environment[VARIABLE])
    path.unlink()
    if text is not None:
        path.write_text(text.format(pid=counter.pid))
    with pytest.raises(CriuError, match=f"guard in CRIU cannot hide memory from it: .*{reason}"):
        Session(criu).dump(request, agree)
    assert counter.computes()
    assert not list(counter.images.glob("pages-*"))


def test_the_list_is_sorted(tmp_path: Path) -> None:
    ranges = [Range(9, 0x2000, 0x1000), Range(9, 0x1000, 0x1000), Range(8, 0x5000, 0x3000)]
    assert write_ranges(ranges, tmp_path).read_text().splitlines() == [
        "gpusnap-guard 1",
        "8 5000 8000",
        "9 1000 2000",
        "9 2000 3000",
        "end 3",
    ]


@pytest.mark.parametrize(
    "ranges",
    [
        [Range(1, 0x1001, 0x1000)],
        [Range(1, 0x1000, 0x10)],
        [Range(1, 0x1000, 0)],
        [Range(1, -0x1000, 0x1000)],
        [Range(1, 0x1000, -0x1000)],
        [Range(0, 0x1000, 0x1000)],
        [Range(1, 1 << 63, 0x1000)],
        [Range(1, 0x1000, 0x2000), Range(1, 0x2000, 0x1000)],
    ],
)
def test_ranges_that_cannot_be(tmp_path: Path, ranges: list[Range]) -> None:
    with pytest.raises(UsageError):
        write_ranges(ranges, tmp_path)


def test_what_a_backend_needs_is_kept(tmp_path: Path) -> None:
    own, work = tmp_path / "own", tmp_path / "work"
    own.mkdir()
    work.mkdir()
    (own / "cuda_plugin.so").touch()
    (own / "notes.txt").touch()
    options = CriuOptions(
        plugin_directory=str(own),
        environment={"PATH": "/bin"},
        inventory_plugin="cuda_plugin",
        expected_images=("x-*.img",),
    )
    for ranges in ([Range(1, PAGE, PAGE)], None):  # a second use of the same folder
        result = guarded(options, work, ranges)
        assert result.plugin_directory is not None
        folder = Path(result.plugin_directory)
        names = {path.name: path.resolve() for path in folder.iterdir()}
        assert names == {
            "cuda_plugin.so": own / "cuda_plugin.so",
            "gpusnap_guard.so": guard_file(),
        }
        assert result.inventory_plugin == "cuda_plugin"
        assert result.expected_images == ("x-*.img",)
        assert result.environment["PATH"] == "/bin"
        assert (VARIABLE in result.environment) == (ranges is not None)


def test_a_backend_s_folder_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="cannot be read"):
        guarded(CriuOptions(plugin_directory=str(tmp_path / "none")), tmp_path, None)
    own = tmp_path / "own"
    own.mkdir()
    (own / "gpusnap_guard.so").touch()
    with pytest.raises(PluginError, match="name of gpusnap's own"):
        guarded(CriuOptions(plugin_directory=str(own)), tmp_path, None)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, criu: Criu) -> Path:
    """An own folder for what is remembered; CRIU stays the one that was found."""
    monkeypatch.setenv("GPUSNAP_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.mark.usefixtures("root")
def test_the_self_test_passes_and_is_remembered(
    criu: Criu, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert guard_works(criu) is None
    (kept,) = data.glob("guard-*.json")
    assert json.loads(kept.read_bytes())["version"] == criu.version_text

    def tried(_criu: Criu) -> None:
        raise CriuError("It was tried again")

    monkeypatch.setattr("gpusnap.criu.guard_check._try", tried)
    assert guard_works(criu) is None
    newer = msgspec.structs.replace(criu, version=(4, 9, 9))
    assert guard_works(newer) == "It was tried again"
    kept.write_text("{")
    assert guard_works(criu) == "It was tried again"


def compile_guard(folder: Path, source: str) -> Path:
    """Make a library in the guard's place."""
    if shutil.which("gcc") is None:
        pytest.skip("No gcc here")
    code, library = folder / "other.c", folder / "gpusnap_guard.so"
    code.write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", code, "-o", library], check=True)
    return library


DESCRIPTOR = """
static int init(int stage) { %s }
static void end(int stage, int result) {}
const struct { const char *n; int (*i)(int); void (*e)(int, int); unsigned v, m; }
    CR_PLUGIN_DESC = { "gpusnap_guard", init, end, 2 << 8, 0 };
"""
NAMED = """
extern int add_inventory_plugin(const char *name);
extern _Bool check_and_remove_inventory_plugin(const char *name, unsigned long length);
"""
NEWER_LIBC = """
extern int of_a_later_libc(void) __asm__("of_a_later_libc");
int (*needed)(void) = of_a_later_libc;
"""


@pytest.mark.usefixtures("root", "data")
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (NEWER_LIBC + DESCRIPTOR % "return 0;", "cannot dump with the guard: Unable to load"),
        (DESCRIPTOR % "return -1;", "cannot dump with the guard"),
        (DESCRIPTOR % "return 0;", "does not name the guard in its images"),
        (
            NAMED + DESCRIPTOR % 'return stage ? 0 : add_inventory_plugin("gpusnap_guard");',
            "saves memory that the guard hides",
        ),
    ],
)
def test_the_self_test_says_what_is_wrong(
    criu: Criu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    library = compile_guard(tmp_path, source)
    for module in ("guard", "guard_check"):
        monkeypatch.setattr(f"gpusnap.criu.{module}.guard_file", lambda: library)
    said = guard_works(criu)
    assert said is not None
    assert reason in said
    assert not list((tmp_path / "data").glob("guard-*"))


def test_the_self_test_needs_root(criu: Criu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert guard_works(criu) == "Keeping memory out of CRIU's dump needs root"


def test_the_self_test_needs_a_criu(data: Path) -> None:
    gone = Criu(command=("/nowhere/criu",), version=(4, 1, 1), source="path", path="/nowhere")
    if os.geteuid() == 0:
        assert re.search(r"could not be tried .*No such file", guard_works(gone) or "")


def test_what_the_guard_says_stands_in_the_error(tmp_path: Path) -> None:
    log = tmp_path / "dump.log"
    log.write_text(
        "(00.01) Error (gpusnap_guard): this CRIU cannot name a plugin in its images\n"
        '(00.01) Error (criu/plugin.c:149): Failed in init(0) of "gpusnap_guard"\n'
    )
    assert explain_failure(log, "").text == (
        "The guard in CRIU cannot hide memory from it: this CRIU cannot name a plugin in its images"
    )
