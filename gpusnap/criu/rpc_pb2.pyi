from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RequestType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EMPTY: _ClassVar[RequestType]
    DUMP: _ClassVar[RequestType]
    RESTORE: _ClassVar[RequestType]
    NOTIFY: _ClassVar[RequestType]

class CgroupMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    IGNORE: _ClassVar[CgroupMode]

class NetworkLock(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    IPTABLES: _ClassVar[NetworkLock]
    NFTABLES: _ClassVar[NetworkLock]
EMPTY: RequestType
DUMP: RequestType
RESTORE: RequestType
NOTIFY: RequestType
IGNORE: CgroupMode
IPTABLES: NetworkLock
NFTABLES: NetworkLock

class Options(_message.Message):
    __slots__ = ("images_dir_fd", "pid", "leave_running", "ext_unix_sk", "tcp_established", "shell_job", "file_locks", "log_level", "log_file", "notify_scripts", "work_dir_fd", "link_remap", "manage_cgroups_mode", "timeout", "network_lock", "images_dir")
    IMAGES_DIR_FD_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    LEAVE_RUNNING_FIELD_NUMBER: _ClassVar[int]
    EXT_UNIX_SK_FIELD_NUMBER: _ClassVar[int]
    TCP_ESTABLISHED_FIELD_NUMBER: _ClassVar[int]
    SHELL_JOB_FIELD_NUMBER: _ClassVar[int]
    FILE_LOCKS_FIELD_NUMBER: _ClassVar[int]
    LOG_LEVEL_FIELD_NUMBER: _ClassVar[int]
    LOG_FILE_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_SCRIPTS_FIELD_NUMBER: _ClassVar[int]
    WORK_DIR_FD_FIELD_NUMBER: _ClassVar[int]
    LINK_REMAP_FIELD_NUMBER: _ClassVar[int]
    MANAGE_CGROUPS_MODE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    NETWORK_LOCK_FIELD_NUMBER: _ClassVar[int]
    IMAGES_DIR_FIELD_NUMBER: _ClassVar[int]
    images_dir_fd: int
    pid: int
    leave_running: bool
    ext_unix_sk: bool
    tcp_established: bool
    shell_job: bool
    file_locks: bool
    log_level: int
    log_file: str
    notify_scripts: bool
    work_dir_fd: int
    link_remap: bool
    manage_cgroups_mode: CgroupMode
    timeout: int
    network_lock: NetworkLock
    images_dir: str
    def __init__(self, images_dir_fd: _Optional[int] = ..., pid: _Optional[int] = ..., leave_running: bool = ..., ext_unix_sk: bool = ..., tcp_established: bool = ..., shell_job: bool = ..., file_locks: bool = ..., log_level: _Optional[int] = ..., log_file: _Optional[str] = ..., notify_scripts: bool = ..., work_dir_fd: _Optional[int] = ..., link_remap: bool = ..., manage_cgroups_mode: _Optional[_Union[CgroupMode, str]] = ..., timeout: _Optional[int] = ..., network_lock: _Optional[_Union[NetworkLock, str]] = ..., images_dir: _Optional[str] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("type", "opts", "notify_success")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    OPTS_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_SUCCESS_FIELD_NUMBER: _ClassVar[int]
    type: RequestType
    opts: Options
    notify_success: bool
    def __init__(self, type: _Optional[_Union[RequestType, str]] = ..., opts: _Optional[_Union[Options, _Mapping[str, object]]] = ..., notify_success: bool = ...) -> None: ...

class Restored(_message.Message):
    __slots__ = ("pid",)
    PID_FIELD_NUMBER: _ClassVar[int]
    pid: int
    def __init__(self, pid: _Optional[int] = ...) -> None: ...

class Notification(_message.Message):
    __slots__ = ("script", "pid")
    SCRIPT_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    script: str
    pid: int
    def __init__(self, script: _Optional[str] = ..., pid: _Optional[int] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("type", "success", "restore", "notify", "cr_errno", "cr_errmsg")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_FIELD_NUMBER: _ClassVar[int]
    CR_ERRNO_FIELD_NUMBER: _ClassVar[int]
    CR_ERRMSG_FIELD_NUMBER: _ClassVar[int]
    type: RequestType
    success: bool
    restore: Restored
    notify: Notification
    cr_errno: int
    cr_errmsg: str
    def __init__(self, type: _Optional[_Union[RequestType, str]] = ..., success: bool = ..., restore: _Optional[_Union[Restored, _Mapping[str, object]]] = ..., notify: _Optional[_Union[Notification, _Mapping[str, object]]] = ..., cr_errno: _Optional[int] = ..., cr_errmsg: _Optional[str] = ...) -> None: ...
