/* How CRIU learns which pages of a process there are: by the ioctl PAGEMAP_SCAN on
 * /proc/PID/pagemap, on older kernels by reading that file. Both, with ranges left out. */
#ifndef GPUSNAP_GUARD_PAGEMAP_H
#define GPUSNAP_GUARD_PAGEMAP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/types.h>

#include "ranges.h"

/* struct pm_scan_arg of linux/fs.h, from Linux 6.7 on; older headers lack it. */
struct pagemap_scan {
    uint64_t size, flags;
    uint64_t start, end;
    uint64_t walk_end; /* where the kernel stopped: what lies before it has been told */
    uint64_t regions, region_count;
    uint64_t max_pages;
    uint64_t inverted, all_of, any_of, returned; /* categories of pages */
};

#define PAGEMAP_SCAN_REQUEST _IOWR('f', 16, struct pagemap_scan)

enum pagemap_category { PAGEMAP_PRESENT = 1 << 3, PAGEMAP_SWAPPED = 1 << 4 };

/* The PID whose pagemap is open as `file`; -1 if it is another kind of file. */
pid_t pagemap_pid(int file);

/* Whether a scan asks for the pages that there are, not for guard pages or the like. */
int pagemap_asks_for_pages(const struct pagemap_scan *scan);

/* Scan as the ioctl does, as if there were no pages in the ranges of the process. */
int pagemap_scan(const struct ranges *hidden, pid_t pid, int file, struct pagemap_scan *scan);

/* Blank the entries of hidden pages in `length` bytes that were read at `offset` of a pagemap. */
void pagemap_blank(const struct ranges *hidden, pid_t pid, void *entries, size_t length,
                   uint64_t offset, uint64_t page);

#endif
