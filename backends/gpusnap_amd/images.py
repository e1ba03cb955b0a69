"""What the image files of CRIU's amdgpu plugin say of a dump.

Formats after ``plugins/amdgpu`` of CRIU's sources, of 3.17 to 4.1 and of 4.2: the older ones
write only the GPU of a render node, and neither the buffers of render nodes nor dmabufs.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import msgspec

from gpusnap.errors import IntegrityError
from gpusnap_amd import images_pb2
from gpusnap_amd.images_files import MOST, decode, payload_size, read_message

_T = TypeVar("_T")
_NUMBER = r"(\d{1,10})"
_HEX = r"([0-9a-f]{4,8})"
KFD = re.compile(rf"amdgpu-kfd-{_NUMBER}\.img", re.ASCII)
PAGES = re.compile(rf"amdgpu-pages-{_NUMBER}-{_HEX}\.img", re.ASCII)
RENDER = re.compile(rf"amdgpu-renderD-{_NUMBER}\.img", re.ASCII)
DMABUF = re.compile(rf"amdgpu-dmabuf_{_NUMBER}\.img", re.ASCII)
DRM_PAGES = re.compile(rf"amdgpu-drm-pages-{_NUMBER}-{_NUMBER}-{_HEX}\.img", re.ASCII)

_DOMAINS = 0x2 | 0x4
"""AMDGPU_GEM_DOMAIN_GTT and _VRAM: what the plugin writes back of a render node's buffers."""


def pages_name(id_: int, gpu: int) -> str:
    """The page file of the buffers that an open KFD has on a GPU."""
    return f"amdgpu-pages-{id_}-{gpu:04x}.img"


def drm_pages_name(id_: int, minor: int, index: int) -> str:
    """The page file of a buffer of a render node."""
    return f"amdgpu-drm-pages-{id_}-{minor}-{index:04x}.img"


class Kind(StrEnum):
    """Where a buffer of KFD lies."""

    VRAM = "vram"
    GTT = "gtt"
    USER_POINTER = "userptr"
    DOORBELL = "doorbell"
    OTHER = "other"


_KINDS = {1: Kind.VRAM, 2: Kind.GTT, 4: Kind.USER_POINTER, 8: Kind.DOORBELL}
"""The lowest bits of KFD_IOC_ALLOC_MEM_FLAGS."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as the dump numbers it, with its memory in bytes; 0 is unknown."""

    id: int
    vram_size: int


class Buffer(msgspec.Struct, frozen=True, kw_only=True):
    """A buffer of KFD, in bytes."""

    address: int
    size: int
    kind: Kind
    gpu: int

    @property
    def paged(self) -> bool:
        """Whether its content is in the page file of its GPU."""
        return self.kind in {Kind.VRAM, Kind.GTT}


class Kfd(msgspec.Struct, frozen=True, kw_only=True):
    """What a process had in KFD; ``id`` is CRIU's number of the open file."""

    id: int
    pid: int
    gpus: tuple[Gpu, ...]
    buffers: tuple[Buffer, ...]


class DrmBuffer(msgspec.Struct, frozen=True, kw_only=True):
    """A buffer of a render node, in bytes, and whether its content is written back."""

    size: int
    paged: bool


class RenderNode(msgspec.Struct, frozen=True, kw_only=True):
    """An open render node; ``minor`` is None where an older CRIU dumped it."""

    id: int
    gpu: int
    minor: int | None
    buffers: tuple[DrmBuffer, ...]


class Images(msgspec.Struct, frozen=True, kw_only=True):
    """All of a dump's files of the plugin.

    Attributes:
        pages: File and GPU to the bytes of memory in the page file.
        drm_pages: File, minor number and index of the buffer to the bytes in its page file.
        dmabufs: The numbers of the files that are shared buffers.
    """

    kfd: tuple[Kfd, ...]
    render_nodes: tuple[RenderNode, ...]
    dmabufs: tuple[int, ...]
    pages: dict[tuple[int, int], int]
    drm_pages: dict[tuple[int, int, int], int]


def read_images(folder: Path) -> Images:
    """Decode the plugin's files in a folder of images; files of others are passed over.

    Raises:
        IntegrityError: One is damaged, or the folder cannot be read.
    """
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise IntegrityError(f"{folder} cannot be read: {error.strerror}") from error
    return Images(
        kfd=_each(names, KFD, lambda name, id_: _kfd(folder / name, int(id_))),
        render_nodes=_each(names, RENDER, lambda name, id_: _render(folder / name, int(id_))),
        dmabufs=_each(names, DMABUF, lambda name, id_: _dmabuf(folder / name, int(id_))),
        pages=dict(
            _each(
                names,
                PAGES,
                lambda name, id_, gpu: ((int(id_), int(gpu, 16)), payload_size(folder / name)),
            )
        ),
        drm_pages=dict(
            _each(
                names,
                DRM_PAGES,
                lambda name, id_, minor, index: (
                    (int(id_), int(minor), int(index, 16)),
                    payload_size(folder / name, headed=False),
                ),
            )
        ),
    )


def _each(
    names: Sequence[str], pattern: re.Pattern[str], read: Callable[..., _T]
) -> tuple[_T, ...]:
    matches = (pattern.fullmatch(name) for name in names)
    return tuple(read(match[0], *match.groups()) for match in matches if match)


def _kfd(path: Path, id_: int) -> Kfd:
    message = read_message(path, images_pb2.Kfd())
    nodes = tuple(_gpus(path.name, message.device_entries))
    gpus = tuple(gpu for gpu in nodes if gpu.id)  # the others are CPUs
    _agree(path.name, "GPUs", message.num_of_gpus, len(gpus))
    _agree(path.name, "CPUs", message.num_of_cpus, len(nodes) - len(gpus))
    _agree(path.name, "buffers", message.num_of_bos, len(message.bo_entries))
    buffers = tuple(_buffers(path.name, message.bo_entries))
    return Kfd(id=id_, pid=message.pid, gpus=gpus, buffers=buffers)


def _gpus(name: str, entries: Sequence[bytes]) -> Iterator[Gpu]:
    for data in _bounded(name, entries):
        entry = decode(images_pb2.KfdDevice(), data, name)
        yield Gpu(id=entry.gpu_id, vram_size=entry.vram_size)


def _buffers(name: str, entries: Sequence[bytes]) -> Iterator[Buffer]:
    for data in _bounded(name, entries):
        entry = decode(images_pb2.KfdBuffer(), data, name)
        flags = entry.alloc_flags
        yield Buffer(
            address=entry.addr,
            size=entry.size,
            kind=_KINDS.get(flags & -flags, Kind.OTHER),
            gpu=entry.gpu_id,
        )


def _render(path: Path, id_: int) -> RenderNode:
    message = read_message(path, images_pb2.RenderNode())
    if message.HasField("id"):
        _agree(path.name, "its number", message.id, id_)
    _agree(path.name, "buffers", message.num_of_bos, len(message.bo_entries))
    return RenderNode(
        id=id_,
        gpu=message.gpu_id,
        minor=message.drm_render_minor if message.HasField("drm_render_minor") else None,
        buffers=tuple(_drm_buffers(path.name, message.bo_entries)),
    )


def _drm_buffers(name: str, entries: Sequence[bytes]) -> Iterator[DrmBuffer]:
    for data in _bounded(name, entries):
        entry = decode(images_pb2.DrmBuffer(), data, name)
        paged = bool(entry.preferred_domains & _DOMAINS) and entry.num_of_vms > 0
        yield DrmBuffer(size=entry.size, paged=paged)


def _dmabuf(path: Path, id_: int) -> int:
    read_message(path, images_pb2.DmaBuf())
    return id_


def _bounded(name: str, entries: Sequence[bytes]) -> Sequence[bytes]:
    if len(entries) > MOST:
        raise IntegrityError(f"{name} lists {len(entries)} entries, more than {MOST}")
    return entries


def _agree(name: str, what: str, claimed: int, found: int) -> None:
    if claimed != found:
        raise IntegrityError(f"{name} is damaged: for {what} it says {claimed}, found {found}")
