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
