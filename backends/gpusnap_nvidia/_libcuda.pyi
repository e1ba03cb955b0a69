from _cffi_backend import FFI

ffi: FFI
