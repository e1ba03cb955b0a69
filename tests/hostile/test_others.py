"""Whatever bytes CRIU, its plugins or an earlier gpusnap left, what comes of them is a sentence or
the truth; see ``test_bytes.py``.
"""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.amd.dumps import new_dump, old_dump
from tests.hostile import others
from tests.hostile.test_bytes import JSON, QUICK, mangled, places

READERS: dict[str, Callable[[bytes], None]] = {name: getattr(others, name) for name in others.SEEDS}
IN_JSON = ("journal", "run", "ledger", "answer")


@pytest.mark.parametrize("name", READERS)
@QUICK
@given(data=st.data())
def test_bytes(name: str, data: st.DataObject) -> None:
    READERS[name](data.draw(mangled(data.draw(st.sampled_from(others.SEEDS[name])))))


@pytest.mark.parametrize("name", IN_JSON)
@QUICK
@given(data=st.data())
def test_values(name: str, data: st.DataObject) -> None:
    """Sound JSON with a few values replaced, each by any other."""
    document = json.loads(data.draw(st.sampled_from(others.SEEDS[name])))
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(places(document)))
        container[key] = data.draw(JSON)
    READERS[name](json.dumps(document).encode())


@pytest.mark.parametrize("name", ["journal", "run", "ledger"])
def test_json_without_an_end(name: str) -> None:
    READERS[name](b'{"x":' + b"[" * 100_000)


@pytest.mark.parametrize("dump", [old_dump, new_dump])
@QUICK
@given(data=st.data())
def test_images_of_amdgpu(dump: Callable[[], dict[str, bytes]], data: st.DataObject) -> None:
    files = dump()
    name = data.draw(st.sampled_from(sorted(files)))
    others.amdgpu({**files, name: data.draw(mangled(files[name]))})
