"""Folders of images as CRIU's amdgpu plugin writes them, encoded here anew. All values are made up.

Field numbers follow ``plugins/amdgpu/criu-amdgpu.proto`` of CRIU's sources.
"""

import struct
from collections.abc import Iterable
from pathlib import Path

VRAM, GTT, USERPTR, DOORBELL, EXECUTABLE = 1, 2, 4, 8, 1 << 30
GPU = 0x1A2B
FIELD_OF_VRAM_SIZE = 31


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def message(fields: dict[int, int | bytes | list[bytes]]) -> bytes:
    out = bytearray()
    for number, value in fields.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, bytes):
                out += varint(number << 3 | 2) + varint(len(each)) + each
            else:
                out += varint(number << 3) + varint(each)
    return bytes(out)


def headed(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def node(gpu_id: int, vram_size: int = 1 << 20) -> bytes:
    """One ``kfd_device_entry``, whose every field but the two that matter is its own number."""
    fields: dict[int, int | bytes | list[bytes]] = {number: number for number in range(1, 32)}
    link = message({1: 11, 2: 0})
    return message({**fields, 2: gpu_id, FIELD_OF_VRAM_SIZE: vram_size, 32: [link, link]})


def buffer(size: int, flags: int, gpu_id: int = GPU, *, handle: int | None = 7) -> bytes:
    fields: dict[int, int | bytes | list[bytes]] = {1: 0x7F00_0000_0000, 2: size, 3: 0}
    newer: dict[int, int | bytes | list[bytes]] = {} if handle is None else {6: handle}
    return message({**fields, 4: flags, 5: gpu_id, **newer})


def kfd(nodes: Iterable[bytes], buffers: Iterable[bytes], **claims: int) -> bytes:
    entries, bos = list(nodes), list(buffers)
    cpus = claims.get("cpus", 1)
    return headed(
        message(
            {
                1: 4711,
                2: claims.get("gpus", len(entries) - cpus),
                3: cpus,
                4: entries,
                5: claims.get("bos", len(bos)),
                6: bos,
                7: 3,
                8: 0,
                9: 0,
                10: b"private" * 3,
            }
        )
    )


def drm_buffer(size: int, domains: int = 4, vms: int = 1) -> bytes:
    vm = message({1: 0x7F00_0000_0000, 2: size, 3: 0, 4: 14})
    return message(
        {1: 1, 2: size, 3: 0, 4: 0, 5: 4096, 6: domains, 7: 9, 8: 0, 9: vms, 10: [vm] * vms}
    )


def render(id_: int, buffers: Iterable[bytes], gpu_id: int = GPU, minor: int = 128) -> bytes:
    bos = list(buffers)
    return headed(message({1: gpu_id, 2: id_, 3: minor, 4: len(bos), 5: bos}))


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).unlink(missing_ok=True)  # writing over a file may wait for the disk
        (folder / name).write_bytes(data)
    return folder


def old_dump() -> dict[str, bytes]:
    """What CRIU 3.17 to 4.1 writes of a process with two GPUs, one of them without buffers."""
    buffers = [
        buffer(96, VRAM | EXECUTABLE, handle=None),
        buffer(32, GTT, handle=None),
        buffer(4096, USERPTR, handle=None),
        buffer(8192, DOORBELL, handle=None),
    ]
    return {
        "amdgpu-kfd-5.img": kfd([node(0, 0), node(GPU), node(0xBEEF)], buffers),
        "amdgpu-pages-5-1a2b.img": headed(b"v" * 96 + b"g" * 32),
        "amdgpu-pages-5-beef.img": headed(b""),
        "amdgpu-renderD-6.img": headed(message({1: GPU})),
        "core-4711.img": b"of somebody else",
    }


def new_dump() -> dict[str, bytes]:
    """What CRIU 4.2 writes: handles, buffers of render nodes, and a shared buffer."""
    drm = [drm_buffer(16), drm_buffer(24, vms=0)]
    garbage = struct.pack("<Q", 0x7FFC_1234_5678)  # it never sets that number
    return {
        "amdgpu-kfd-5.img": kfd([node(0, 0), node(GPU)], [buffer(64, VRAM), buffer(64, VRAM)]),
        "amdgpu-pages-5-1a2b.img": headed(b"p" * 128),
        "amdgpu-renderD-6.img": render(6, drm),
        "amdgpu-drm-pages-6-128-0000.img": garbage + b"d" * 16,
        "amdgpu-drm-pages-6-128-0001.img": garbage + b"d" * 24,
        "amdgpu-dmabuf_9.img": headed(message({1: 12})),
    }
