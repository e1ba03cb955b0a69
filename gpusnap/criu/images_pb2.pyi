from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Plugins(_message.Message):
    __slots__ = ("plugins",)
    PLUGINS_FIELD_NUMBER: _ClassVar[int]
    plugins: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, plugins: _Optional[_Iterable[str]] = ...) -> None: ...

class Inventory(_message.Message):
    __slots__ = ("img_version", "plugins_entry")
    IMG_VERSION_FIELD_NUMBER: _ClassVar[int]
    PLUGINS_ENTRY_FIELD_NUMBER: _ClassVar[int]
    img_version: int
    plugins_entry: Plugins
    def __init__(self, img_version: _Optional[int] = ..., plugins_entry: _Optional[_Union[Plugins, _Mapping[str, object]]] = ...) -> None: ...

class TreeEntry(_message.Message):
    __slots__ = ("pid", "pgid", "sid", "threads")
    PID_FIELD_NUMBER: _ClassVar[int]
    PGID_FIELD_NUMBER: _ClassVar[int]
    SID_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    pid: int
    pgid: int
    sid: int
    threads: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, pid: _Optional[int] = ..., pgid: _Optional[int] = ..., sid: _Optional[int] = ..., threads: _Optional[_Iterable[int]] = ...) -> None: ...

class RegularFile(_message.Message):
    __slots__ = ("flags", "pos", "name", "size")
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    POS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    flags: int
    pos: int
    name: bytes
    size: int
    def __init__(self, flags: _Optional[int] = ..., pos: _Optional[int] = ..., name: _Optional[bytes] = ..., size: _Optional[int] = ...) -> None: ...

class FilePermissions(_message.Message):
    __slots__ = ("mode", "uid", "gid")
    MODE_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    GID_FIELD_NUMBER: _ClassVar[int]
    mode: int
    uid: int
    gid: int
    def __init__(self, mode: _Optional[int] = ..., uid: _Optional[int] = ..., gid: _Optional[int] = ...) -> None: ...

class UnixSocket(_message.Message):
    __slots__ = ("type", "state", "uflags", "name", "file_perms", "name_dir", "deleted")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    UFLAGS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FILE_PERMS_FIELD_NUMBER: _ClassVar[int]
    NAME_DIR_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    type: int
    state: int
    uflags: int
    name: bytes
    file_perms: FilePermissions
    name_dir: str
    deleted: bool
    def __init__(self, type: _Optional[int] = ..., state: _Optional[int] = ..., uflags: _Optional[int] = ..., name: _Optional[bytes] = ..., file_perms: _Optional[_Union[FilePermissions, _Mapping[str, object]]] = ..., name_dir: _Optional[str] = ..., deleted: bool = ...) -> None: ...

class FileEntry(_message.Message):
    __slots__ = ("id", "reg", "usk")
    ID_FIELD_NUMBER: _ClassVar[int]
    REG_FIELD_NUMBER: _ClassVar[int]
    USK_FIELD_NUMBER: _ClassVar[int]
    id: int
    reg: RegularFile
    usk: UnixSocket
    def __init__(self, id: _Optional[int] = ..., reg: _Optional[_Union[RegularFile, _Mapping[str, object]]] = ..., usk: _Optional[_Union[UnixSocket, _Mapping[str, object]]] = ...) -> None: ...

class Vma(_message.Message):
    __slots__ = ("start", "end", "madv")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    MADV_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    madv: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., madv: _Optional[int] = ...) -> None: ...

class Memory(_message.Message):
    __slots__ = ("vmas",)
    VMAS_FIELD_NUMBER: _ClassVar[int]
    vmas: _containers.RepeatedCompositeFieldContainer[Vma]
    def __init__(self, vmas: _Optional[_Iterable[_Union[Vma, _Mapping[str, object]]]] = ...) -> None: ...
