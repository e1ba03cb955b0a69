/* The address ranges to hide, as gpusnap wrote them:
 *
 *     gpusnap-guard 1
 *     4711 7f0000000000 7f0000200000
 *     end 1
 *
 * One line a range: PID, first address, address behind the last byte. They are sorted by PID and
 * address, do not overlap and are whole pages. The last line tells their number, so that a file
 * that was cut short is noticed. */
#ifndef GPUSNAP_GUARD_RANGES_H
#define GPUSNAP_GUARD_RANGES_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct range {
    uint64_t pid, start, end;
};

struct ranges {
    struct range *items;
    size_t count;
};

/* Read the file. Gives NULL, or what is wrong with it; `ranges` is empty then. */
const char *ranges_read(struct ranges *ranges, const char *path, uint64_t page);

/* The same for the `length` bytes of a file's text, behind which there is a zero byte. */
const char *ranges_parse(struct ranges *ranges, const char *text, size_t length, uint64_t page);

/* The first range of the process that ends behind `address`; NULL if there is none. */
const struct range *ranges_next(const struct ranges *ranges, pid_t pid, uint64_t address);

void ranges_free(struct ranges *ranges);

#endif
