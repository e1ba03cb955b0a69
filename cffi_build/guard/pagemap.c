/* Leaves ranges out of what CRIU learns of a process's pages. */
#include "pagemap.h"

#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#define ENTRY_BYTES 8

/* The number before "/pagemap" at the end of a path; -1 if the path is not of that kind. CRIU may
 * have /proc elsewhere, also detached, so that only the end of the path is certain. */
static pid_t pid_in_path(const char *path, size_t length)
{
    static const char name[] = "/pagemap";
    const size_t tail = sizeof(name) - 1;
    if (length < tail || memcmp(path + length - tail, name, tail) != 0)
        return -1;
    pid_t pid = 0, unit = 1;
    size_t at = length - tail;
    /* No PID has more digits than seven */
    for (; at > 0 && path[at - 1] >= '0' && path[at - 1] <= '9' && unit <= 1000000; unit *= 10)
        pid += (path[--at] - '0') * unit;
    return unit > 1 && at > 0 && path[at - 1] == '/' ? pid : -1;
}

static int is_of_proc(int file)
{
    struct statfs system;
    return fstatfs(file, &system) == 0 && system.f_type == PROC_SUPER_MAGIC;
}

pid_t pagemap_pid(int file)
{
    char link[48], path[256];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof(path));
    if (length <= 0 || (size_t)length == sizeof(path))
        return -1;
    pid_t pid = pid_in_path(path, (size_t)length);
    return pid >= 0 && is_of_proc(file) ? pid : -1;
}

int pagemap_asks_for_pages(const struct pagemap_scan *scan)
{
    return scan->size == sizeof(*scan) && (scan->any_of & (PAGEMAP_PRESENT | PAGEMAP_SWAPPED)) != 0;
}

/* A scan may end early, which CRIU is prepared for: it goes on where the last one stopped. So one
 * that begins in a range ends with it, empty, and one that would reach a range ends before it. */
int pagemap_scan(const struct ranges *hidden, pid_t pid, int file, struct pagemap_scan *scan)
{
    const struct range *range = ranges_next(hidden, pid, scan->start);
    if (range == NULL || range->start >= scan->end)
        return ioctl(file, PAGEMAP_SCAN_REQUEST, scan);
    if (range->start <= scan->start) {
        scan->walk_end = range->end < scan->end ? range->end : scan->end;
        return 0;
    }
    uint64_t end = scan->end;
    scan->end = range->start;
    int result = ioctl(file, PAGEMAP_SCAN_REQUEST, scan);
    scan->end = end;
    return result;
}

void pagemap_blank(const struct ranges *hidden, pid_t pid, void *entries, size_t length,
                   uint64_t offset, uint64_t page)
{
    const uint64_t start = offset / ENTRY_BYTES * page;
    const uint64_t end = start + length / ENTRY_BYTES * page;
    const struct range *range;
    for (uint64_t at = start; at < end; at = range->end) {
        range = ranges_next(hidden, pid, at);
        if (range == NULL || range->start >= end)
            return;
        uint64_t from = range->start > at ? range->start : at;
        uint64_t to = range->end < end ? range->end : end;
        memset((char *)entries + (from - start) / page * ENTRY_BYTES, 0,
               (to - from) / page * ENTRY_BYTES);
    }
}
