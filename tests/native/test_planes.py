from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusnap import native
from gpusnap.errors import UsageError
from gpusnap.native import planes


@pytest.fixture(params=["extension", "python"], autouse=True, scope="module")
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(planes, "EXTENSION", None)
        yield


@given(data=st.binary(max_size=500), width=st.sampled_from([2, 4]))
def test_planes(data: bytes, width: int) -> None:
    apart, back = bytearray(len(data)), bytearray(len(data))
    native.split_planes(data, apart, width)
    whole = len(data) // width * width
    expected = b"".join(data[plane:whole:width] for plane in range(width)) + data[whole:]
    assert apart == expected
    native.join_planes(apart, back, width)
    assert back == data


@pytest.mark.parametrize("function", [native.split_planes, native.join_planes])
def test_what_is_refused(function: Callable[[bytes, bytes | bytearray, int], None]) -> None:
    with pytest.raises(UsageError, match="Numbers of 3 bytes"):
        function(b"abc", bytearray(3), 3)
    with pytest.raises(UsageError, match="Planes of 3 bytes do not go into 4"):
        function(b"abc", bytearray(4), 2)
    with pytest.raises((BufferError, TypeError, ValueError)):
        function(b"abcd", b"1234", 2)
