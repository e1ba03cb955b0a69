#define _GNU_SOURCE
#include "extents.h"

#include <assert.h>
#include <unistd.h>

#include "crc32.h"
#include "memory.h"
#include "pages.h"

enum { MOST_PAGES = 256, MOST_RUNS = MOST_PAGES / 2 };

static int read_all(int32_t descriptor, uint8_t *buffer, size_t length, uint64_t position)
{
    while (length > 0) {
        ssize_t done = pread(descriptor, buffer, length, (off_t)position);
        if (done <= 0)
            return 0;
        buffer += done;
        length -= (size_t)done;
        position += (uint64_t)done;
    }
    return 1;
}

static int write_pages(int32_t pid, uint64_t address, const uint8_t *data, size_t length,
                       size_t page)
{
    struct gpusnap_run runs[MOST_RUNS];
    for (size_t at = 0; at < length; at += MOST_PAGES * page) {
        size_t size = length - at < MOST_PAGES * page ? length - at : MOST_PAGES * page;
        size_t count = gpusnap_nonzero_pages(data + at, size, page, runs, MOST_RUNS);
        for (size_t i = 0; i < count; i++) {
            uint64_t begin = at + runs[i].offset;
            if (gpusnap_write_process(pid, address + begin, data + begin, runs[i].length) !=
                runs[i].length)
                return 0;
        }
    }
    return 1;
}

size_t gpusnap_put_extents(int implementation, int32_t descriptor,
                           const struct gpusnap_extent *extents, size_t count, size_t page,
                           uint8_t *buffer, size_t room)
{
    assert(extents != NULL || count == 0);
    assert(page > 0);
    for (size_t i = 0; i < count; i++) {
        const struct gpusnap_extent *one = &extents[i];
        assert(one->length <= room);
        if (!read_all(descriptor, buffer, one->length, one->position))
            return i;
        if (gpusnap_crc32(implementation, 0, buffer, one->length) != one->crc)
            return i;
        if (one->pid != 0 && !write_pages(one->pid, one->address, buffer, one->length, page))
            return i;
    }
    return count;
}
