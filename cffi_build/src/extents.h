/* Chunks that lie in a pack as they were in memory: checked, and written back, without a detour
 * through Python, whose lock many threads would wait for. */
#ifndef GPUSNAP_EXTENTS_H
#define GPUSNAP_EXTENTS_H

#include <stddef.h>
#include <stdint.h>

struct gpusnap_extent {
    uint64_t position; /* in the file */
    uint64_t length;
    uint64_t address; /* in the process */
    int32_t pid;      /* 0 where it is only checked */
    uint32_t crc;
};

/* Read extents of a file, each into `buffer`, whose `room` is enough for the longest; compare its
 * CRC-32, and then write its pages that are not all zero into the process. Returns how many extents
 * were done with: the one after them could not be read, is not what it was, or was not taken in
 * full by the process. Why, the caller finds out by doing it step by step. */
size_t gpusnap_put_extents(int implementation, int32_t descriptor,
                           const struct gpusnap_extent *extents, size_t count, size_t page,
                           uint8_t *buffer, size_t room);

#endif
