"""Whether a dump of CRIU's amdgpu plugin holds the memory that it lists.

CRIU says success of dumps that hold none: the second dump of a process that was restored onto
another GPU is one. So a target is let go only after these rules.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from gpusnap.errors import IntegrityError
from gpusnap.types import Finding, SavedBuffers, Severity
from gpusnap_amd.images import (
    Images,
    Kfd,
    Kind,
    RenderNode,
    drm_pages_name,
    pages_name,
    read_images,
)

_MOST = 100
"""Findings of one dump; the next ones would say the same."""


def verify_images(folder: Path) -> tuple[Finding, ...]:
    """Check the plugin's files in a folder of images, none of which is no fault."""
    try:
        images = read_images(folder)
    except IntegrityError as error:
        return (_finding(error.text),)
    return tuple(_finding(text) for text in islice(faults(images), _MOST))


def _finding(text: str) -> Finding:
    return Finding(
        code="amd-images-damaged",
        severity=Severity.ERROR,
        text=text,
        cure="Checkpoint again; see CRIU's log for what its amdgpu plugin did",
    )


def faults(images: Images) -> Iterator[str]:
    """Say in sentences what files that can each be decoded do not hold together."""
    for kfd in images.kfd:
        yield from _kfd_faults(kfd, images.pages)
    for node in images.render_nodes:
        yield from _render_faults(node, images)
    yield from _strays(images)


def _kfd_faults(kfd: Kfd, pages: dict[tuple[int, int], int]) -> Iterator[str]:
    name = f"amdgpu-kfd-{kfd.id}.img"
    sizes = {gpu.id: gpu.vram_size for gpu in kfd.gpus}
    if len(sizes) < len(kfd.gpus):
        yield f"{name} lists a GPU twice"
    paged: Counter[int] = Counter()
    vram: Counter[int] = Counter()
    for buffer in kfd.buffers:
        paged[buffer.gpu] += buffer.size if buffer.paged else 0
        vram[buffer.gpu] += buffer.size if buffer.kind is Kind.VRAM else 0
    for gpu in sorted(paged.keys() - sizes.keys()):
        yield f"{name} has buffers of GPU {gpu:#x}, which it does not list"
    for gpu, size in sizes.items():
        if size and vram[gpu] > size:
            yield f"{name} has {vram[gpu]} bytes of buffers in the {size} bytes of GPU {gpu:#x}"
        yield from _pages_faults(kfd.id, gpu, paged[gpu], pages)


def _pages_faults(
    id_: int, gpu: int, wanted: int, pages: dict[tuple[int, int], int]
) -> Iterator[str]:
    held = pages.get((id_, gpu), 0)
    if held != wanted:
        name = pages_name(id_, gpu)
        what = f"holds {held} bytes" if (id_, gpu) in pages else "is missing"
        yield f"{name} {what}, the buffers of GPU {gpu:#x} have {wanted}"


def _render_faults(node: RenderNode, images: Images) -> Iterator[str]:
    name = f"amdgpu-renderD-{node.id}.img"
    if node.gpu not in {gpu.id for kfd in images.kfd for gpu in kfd.gpus}:
        yield f"{name} is of GPU {node.gpu:#x}, which no KFD image lists"
    if node.minor is None:
        return
    for index, buffer in enumerate(node.buffers):
        held = images.drm_pages.get((node.id, node.minor, index))
        if held != buffer.size and (buffer.paged or held is not None):
            pages = drm_pages_name(node.id, node.minor, index)
            what = "is missing" if held is None else f"holds {held} bytes"
            yield f"{pages} {what}, its buffer has {buffer.size}"


def _strays(images: Images) -> Iterator[str]:
    known = {(kfd.id, gpu.id) for kfd in images.kfd for gpu in kfd.gpus}
    for id_, gpu in sorted(images.pages.keys() - known):
        yield f"{pages_name(id_, gpu)} belongs to no GPU of a KFD image"
    buffers = {(node.id, node.minor): len(node.buffers) for node in images.render_nodes}
    for id_, minor, index in sorted(images.drm_pages):
        if index >= buffers.get((id_, minor), 0):
            pages = drm_pages_name(id_, minor, index)
            yield f"{pages} belongs to no buffer of a render node"


def describe_images(folder: Path) -> tuple[SavedBuffers, ...]:
    """Count the buffers in a folder of images by GPU and kind.

    Raises:
        IntegrityError: A file is damaged.
    """
    images = read_images(folder)
    counts: Counter[tuple[int, str]] = Counter()
    sizes: Counter[tuple[int, str]] = Counter()
    for gpu, kind, size in _buffers(images):
        counts[gpu, kind] += 1
        sizes[gpu, kind] += size
    return tuple(
        SavedBuffers(device=f"{gpu:#06x}", kind=kind, count=counts[gpu, kind], bytes=size)
        for (gpu, kind), size in sorted(sizes.items())
    )


def _buffers(images: Images) -> Iterator[tuple[int, str, int]]:
    for kfd in images.kfd:
        yield from ((buffer.gpu, buffer.kind.value, buffer.size) for buffer in kfd.buffers)
    for node in images.render_nodes:
        yield from ((node.gpu, "drm", buffer.size) for buffer in node.buffers)
