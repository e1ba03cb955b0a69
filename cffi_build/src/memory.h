/* Copies from and to the memory of another process. */
#ifndef GPUSNAP_MEMORY_H
#define GPUSNAP_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* Read `length` bytes at `address` of a process into `data`, up to the first that the kernel
 * refuses, and take `*crc` on over what was read, with an implementation of crc32.h; where `crc` is
 * NULL no sum is taken. Returns how many bytes were read: for why there are no more, the caller
 * asks /proc/PID/mem. */
size_t gpusnap_read_process(int implementation, int32_t pid, uint64_t address, uint8_t *data,
                            size_t length, uint32_t *crc);

/* The same the other way. Returns how many bytes were written. */
size_t gpusnap_write_process(int32_t pid, uint64_t address, const uint8_t *data, size_t length);

#endif
