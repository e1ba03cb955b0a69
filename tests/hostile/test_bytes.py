"""Whatever bytes a snapshot holds, what comes of them is a sentence or the truth.

``GPUSNAP_FUZZ=1000`` tries a thousand times as many inputs; ``tests/hostile/fuzz.py`` searches
with coverage as its guide.
"""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpusnap.datapath.records import Codec
from tests.hostile import samples, targets

QUICK = settings(
    max_examples=targets.examples(30), suppress_health_check=[HealthCheck.too_slow], deadline=None
)

SAVED = {False: samples.saved(), True: samples.saved(incremental=True)}


@st.composite
def mangled(draw: st.DrawFn, data: bytes) -> bytes:
    """Sound bytes with a few changed, cut out, doubled or put in."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, max(len(changed) - 1, 0)))
        end = min(begin + draw(st.sampled_from([1, 1, 2, 4, 8, 32])), len(changed))
        same = end - begin
        changed[begin:end] = draw(
            st.one_of(
                st.binary(min_size=same, max_size=same),
                st.sampled_from([bytes(same), b"\xff" * same, b"\x7f" + b"\xff" * (same - 1)]),
                st.binary(max_size=40),
                st.just(bytes(changed[:64])),
            )
        )
    return bytes(changed)


ODD = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, -1, 1 << 22, (1 << 63) - 1, 1 << 64, -(1 << 63)])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(["", "..", "/etc/passwd", "../../x", "\0", "\x1b[2J", "a" * 5000, "\n"])
)
JSON = st.recursive(
    ODD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """All containers in JSON, each with one of its keys."""
    if not isinstance(value, dict | list):
        return []
    keys = list(value) if isinstance(value, dict) else range(len(value))
    own = [(value, key) for key in keys]
    return own + [place for key in keys for place in places(value[key])]


@st.composite
def manifests(draw: st.DrawFn) -> bytes:
    """Sound JSON with a few values replaced, each by any other."""
    document = json.loads(draw(st.sampled_from(samples.MANIFESTS)))
    for _ in range(draw(st.integers(1, 3))):
        container, key = draw(st.sampled_from(places(document)))
        container[key] = draw(JSON)
    return json.dumps(document).encode()


@QUICK
@given(manifests() | st.sampled_from(samples.MANIFESTS).flatmap(mangled))
def test_a_manifest(data: bytes) -> None:
    targets.manifest(data)


@pytest.mark.parametrize("incremental", [False, True])
@QUICK
@given(data=st.data())
def test_an_index(incremental: bool, data: st.DataObject) -> None:
    files = SAVED[incremental]
    index = data.draw(mangled(files["index"]))
    for forged in (index, targets.sealed(index)):
        targets.regions(files | {"index": forged})


@pytest.mark.parametrize("incremental", [False, True])
@QUICK
@given(data=st.data())
def test_a_pack(incremental: bool, data: st.DataObject) -> None:
    files = SAVED[incremental]
    pack = data.draw(mangled(files["000.pack"]))
    for forged in (pack, targets.sealed(pack)):
        targets.regions(files | {"000.pack": forged})


@QUICK
@given(
    st.integers(-1, 9) | st.sampled_from(Codec),
    st.binary(max_size=200) | mangled(SAVED[False]["000.pack"]),
    st.integers(0, targets.LONGEST),
)
def test_a_chunk(codec: int, data: bytes, length: int) -> None:
    targets.chunk(codec, data, length)


@QUICK
@given(mangled(samples.IMAGES["inventory.img"]), mangled(samples.IMAGES["pstree.img"]))
def test_images_of_criu(inventory: bytes, tree: bytes) -> None:
    targets.images({"inventory.img": inventory, "pstree.img": tree})
