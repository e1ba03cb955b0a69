#define _GNU_SOURCE
#include "pieces.h"

#include <assert.h>
#include <errno.h>
#include <unistd.h>

#include "crc32.h"
#include "memory.h"
#include "pages.h"

static int is_whole(const uint8_t *data, size_t length, size_t page)
{
    for (size_t at = 0; at < length; at += page) {
        size_t size = length - at < page ? length - at : page;
        struct gpusnap_run run;
        if (gpusnap_nonzero_pages(data + at, size, page, &run, 1) == 0)
            return 0;
    }
    return 1;
}

/* Write all; returns the number of an error, or 0. */
static int32_t write_all(int32_t file, const uint8_t *data, size_t length, uint64_t position)
{
    while (length > 0) {
        ssize_t done = pwrite(file, data, length, (off_t)position);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done < 0 ? errno : EIO;
        data += done;
        length -= (size_t)done;
        position += (uint64_t)done;
    }
    return 0;
}

size_t gpusnap_read_pieces(int implementation, struct gpusnap_piece *pieces, size_t count,
                           size_t page, uint8_t *data, size_t room,
                           struct gpusnap_outlet *outlet)
{
    assert(pieces != NULL || count == 0);
    assert(page > 0);
    assert(outlet != NULL);
    outlet->error = 0;
    for (size_t i = 0; i < count; i++) {
        struct gpusnap_piece *one = &pieces[i];
        assert(one->length <= room);
        one->crc = 0;
        one->written = 0;
        if (gpusnap_read_process(implementation, one->pid, one->address, data, one->length,
                                 &one->crc) != one->length)
            return i;
        one->whole = is_whole(data, one->length, page);
        if (one->whole && one->length > 0 && outlet->file >= 0) {
            outlet->error = write_all(outlet->file, data, one->length, outlet->position);
            if (outlet->error != 0)
                return i;
            outlet->position += one->length;
            one->written = 1;
            continue; /* the next one takes its room, which is in the cache */
        }
        data += one->length;
        room -= one->length;
    }
    return count;
}
