#include "pieces.h"

#include <assert.h>

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

size_t gpusnap_read_pieces(int implementation, struct gpusnap_piece *pieces, size_t count,
                           size_t page, uint8_t *data, size_t room)
{
    assert(pieces != NULL || count == 0);
    assert(page > 0);
    for (size_t i = 0; i < count; i++) {
        struct gpusnap_piece *one = &pieces[i];
        assert(one->length <= room);
        one->crc = 0;
        if (gpusnap_read_process(implementation, one->pid, one->address, data, one->length,
                                 &one->crc) != one->length)
            return i;
        one->whole = is_whole(data, one->length, page);
        data += one->length;
        room -= one->length;
    }
    return count;
}
