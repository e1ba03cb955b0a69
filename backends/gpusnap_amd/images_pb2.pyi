from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class KfdDevice(_message.Message):
    __slots__ = ("gpu_id", "vram_size")
    GPU_ID_FIELD_NUMBER: _ClassVar[int]
    VRAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    gpu_id: int
    vram_size: int
    def __init__(self, gpu_id: _Optional[int] = ..., vram_size: _Optional[int] = ...) -> None: ...

class KfdBuffer(_message.Message):
    __slots__ = ("addr", "size", "alloc_flags", "gpu_id")
    ADDR_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ALLOC_FLAGS_FIELD_NUMBER: _ClassVar[int]
    GPU_ID_FIELD_NUMBER: _ClassVar[int]
    addr: int
    size: int
    alloc_flags: int
    gpu_id: int
    def __init__(self, addr: _Optional[int] = ..., size: _Optional[int] = ..., alloc_flags: _Optional[int] = ..., gpu_id: _Optional[int] = ...) -> None: ...

class Kfd(_message.Message):
    __slots__ = ("pid", "num_of_gpus", "num_of_cpus", "device_entries", "num_of_bos", "bo_entries")
    PID_FIELD_NUMBER: _ClassVar[int]
    NUM_OF_GPUS_FIELD_NUMBER: _ClassVar[int]
    NUM_OF_CPUS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    NUM_OF_BOS_FIELD_NUMBER: _ClassVar[int]
    BO_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    pid: int
    num_of_gpus: int
    num_of_cpus: int
    device_entries: _containers.RepeatedScalarFieldContainer[bytes]
    num_of_bos: int
    bo_entries: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, pid: _Optional[int] = ..., num_of_gpus: _Optional[int] = ..., num_of_cpus: _Optional[int] = ..., device_entries: _Optional[_Iterable[bytes]] = ..., num_of_bos: _Optional[int] = ..., bo_entries: _Optional[_Iterable[bytes]] = ...) -> None: ...

class DrmBuffer(_message.Message):
    __slots__ = ("size", "preferred_domains", "num_of_vms")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_DOMAINS_FIELD_NUMBER: _ClassVar[int]
    NUM_OF_VMS_FIELD_NUMBER: _ClassVar[int]
    size: int
    preferred_domains: int
    num_of_vms: int
    def __init__(self, size: _Optional[int] = ..., preferred_domains: _Optional[int] = ..., num_of_vms: _Optional[int] = ...) -> None: ...

class RenderNode(_message.Message):
    __slots__ = ("gpu_id", "id", "drm_render_minor", "num_of_bos", "bo_entries")
    GPU_ID_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    DRM_RENDER_MINOR_FIELD_NUMBER: _ClassVar[int]
    NUM_OF_BOS_FIELD_NUMBER: _ClassVar[int]
    BO_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    gpu_id: int
    id: int
    drm_render_minor: int
    num_of_bos: int
    bo_entries: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, gpu_id: _Optional[int] = ..., id: _Optional[int] = ..., drm_render_minor: _Optional[int] = ..., num_of_bos: _Optional[int] = ..., bo_entries: _Optional[_Iterable[bytes]] = ...) -> None: ...

class DmaBuf(_message.Message):
    __slots__ = ("gem_handle",)
    GEM_HANDLE_FIELD_NUMBER: _ClassVar[int]
    gem_handle: int
    def __init__(self, gem_handle: _Optional[int] = ...) -> None: ...
