/* Many copies out of processes in one call, without a detour through Python after each, whose lock
 * many threads would wait for. */
#ifndef GPUSNAP_PIECES_H
#define GPUSNAP_PIECES_H

#include <stddef.h>
#include <stdint.h>

struct gpusnap_piece {
    uint64_t address;
    uint64_t length;
    int32_t pid;
    uint32_t crc;  /* set: of what was read */
    int32_t whole; /* set: whether none of its pages is all zero */
};

/* Read pieces into `data`, one behind the other, and set what is to be set; all together have
 * `room` bytes at most. Returns how many were read. Of the one after them the kernel refused some:
 * why, the caller finds out by itself. */
size_t gpusnap_read_pieces(int implementation, struct gpusnap_piece *pieces, size_t count,
                           size_t page, uint8_t *data, size_t room);

#endif
