/* From the memory of a process straight into a file, piece by piece while each is in the
 * processor's cache: a second pass over memory that was copied costs about as much as the copy. */
#ifndef GPUSNAP_STRAIGHT_H
#define GPUSNAP_STRAIGHT_H

#include <stddef.h>
#include <stdint.h>

struct gpusnap_straight {
    uint64_t address;
    uint64_t length;
    uint64_t first; /* bytes of the first piece */
    uint64_t step;  /* bytes of the others; the last one may be shorter */
    uint64_t position; /* where in the file the first piece goes, the others right behind it */
    int32_t pid;
    int32_t file;
    int32_t error; /* set: the number of the error that writing ended with, 0 for none */
    uint64_t rest; /* set: bytes of the next piece, where it is in `data`, else 0 */
};

/* Copy pieces, each through `data`, which has room for the longest, and set the CRC-32 of each.
 * Returns how many are in the file. That is not all where the next one has a page that is all zero:
 * it is left in `data`, and its CRC-32 is set as well. Nor is it where the kernel refused some of
 * the next one, or the file has an error. */
size_t gpusnap_copy_straight(int implementation, struct gpusnap_straight *copy, size_t page,
                             uint8_t *data, size_t room, uint32_t *crcs);

#endif
