"""The page files of CRIU's amdgpu plugin, and where each buffer lies in them.

In a page file the plugin puts all buffers of a GPU that have memory of their own, one behind the
other in the order in which the KFD image lists them (``plugins/amdgpu/amdgpu_plugin.c`` of CRIU's
sources); a page file of a render node is one buffer.
"""

from collections.abc import Iterator
from pathlib import Path

from gpusnap.types import BulkImage
from gpusnap_amd.images import Images, drm_pages_name, pages_name, read_images
from gpusnap_amd.images_files import HEADER


def page_files(folder: Path) -> tuple[BulkImage, ...]:
    """Tell of all page files in a folder of images that were verified.

    Raises:
        IntegrityError: A file is damaged.
    """
    images = read_images(folder)
    return (*_of_kfd(images), *_of_render_nodes(images))


def _of_kfd(images: Images) -> Iterator[BulkImage]:
    for kfd in images.kfd:
        for gpu in kfd.gpus:
            if (kfd.id, gpu.id) in images.pages:
                sizes = (each.size for each in kfd.buffers if each.gpu == gpu.id and each.paged)
                yield BulkImage(name=pages_name(kfd.id, gpu.id), parts=(HEADER.size, *sizes))


def _of_render_nodes(images: Images) -> Iterator[BulkImage]:
    for (id_, minor, index), size in images.drm_pages.items():
        yield BulkImage(name=drm_pages_name(id_, minor, index), parts=(HEADER.size, size))
