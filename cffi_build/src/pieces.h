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
    int32_t written; /* set: whether it is in the file, and not in the buffer */
};

/* Where whole pieces are written, one behind the other, while they still are in the processor's
 * cache: a second pass over memory that was copied costs about as much as the copy. */
struct gpusnap_outlet {
    int32_t file; /* a descriptor, below 0 for none */
    int32_t error; /* set: the number of the error that writing ended with, 0 for none */
    uint64_t position;
};

/* Read pieces into `data`, those that are not written one behind the other, and set what is to be
 * set; all together have `room` bytes at most. Returns how many were read, and written. With the
 * one after them the file has an error, or the kernel refused some of it: why, the caller finds
 * out by itself. */
size_t gpusnap_read_pieces(int implementation, struct gpusnap_piece *pieces, size_t count,
                           size_t page, uint8_t *data, size_t room,
                           struct gpusnap_outlet *outlet);

#endif
