/* Which pages hold anything. */
#ifndef GPUSNAP_PAGES_H
#define GPUSNAP_PAGES_H

#include <stddef.h>
#include <stdint.h>

/* Some bytes: where they begin, and how many. */
struct gpusnap_run {
    uint64_t offset;
    uint64_t length;
};

/* Find the pages of `page` bytes that are not all zero; the last may be shorter. Runs of them go
 * to `runs`, which must have room for as many as there can be: every second page's. Returns how
 * many there are. */
size_t gpusnap_nonzero_pages(const uint8_t *data, size_t length, size_t page,
                             struct gpusnap_run *runs, size_t room);

/* Whether none of the pages is all zero. */
int gpusnap_is_whole(const uint8_t *data, size_t length, size_t page);

/* What the first function does, for `count` words of /proc/PID/pagemap: pages in memory or swapped
 * out, but no guard regions. The first word stands for offset 0. */
size_t gpusnap_held_pages(const uint64_t *words, size_t count, size_t page,
                          struct gpusnap_run *runs, size_t room);

#endif
