/* From the memory of a process straight into a file, piece by piece while each is in the
 * processor's cache: a second pass over memory that was copied costs about as much as the copy. */
#ifndef GPUSNAP_STRAIGHT_H
#define GPUSNAP_STRAIGHT_H

#include <stddef.h>
#include <stdint.h>

#include "pages.h"

/* Memory that is in the file: pages without one that is all zero between them, or a few such. */
struct gpusnap_stored {
    uint64_t offset; /* counted from the copy's base */
    uint32_t length;
    uint32_t crc;
};

struct gpusnap_straight {
    uint64_t base;     /* address that offsets are counted from */
    uint64_t step;     /* no piece reaches over a multiple of it, counted from the base */
    uint64_t position; /* where in the file the next byte goes; moved on */
    int32_t pid;
    int32_t file;
    int32_t error; /* set: the number of the error that writing ended with, 0 for none */
    uint64_t done; /* set: bytes of the runs that need no second look, zeros included */
};

/* Copy runs of whole pages, but for pages that are all zero, through `data`, which has room for a
 * piece of the longest, and tell in `stored` what is in the file now. Returns how many entries it
 * has; there must be room for one for each page. A piece that the kernel refuses some of ends it,
 * and an error of the file does: the file may have more than was told of then. */
size_t gpusnap_copy_straight(int implementation, struct gpusnap_straight *copy,
                             const struct gpusnap_run *runs, size_t count, size_t page,
                             uint8_t *data, size_t room, struct gpusnap_stored *stored,
                             size_t most);

#endif
