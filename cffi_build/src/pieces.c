#include "pieces.h"

#include <assert.h>

#include "crc32.h"
#include "memory.h"
#include "pages.h"

size_t gpusnap_read_pieces(int implementation, struct gpusnap_piece *pieces, size_t count,
                           size_t page, uint8_t *data, size_t room)
{
    assert(pieces != NULL || count == 0);
    for (size_t i = 0; i < count; i++) {
        struct gpusnap_piece *one = &pieces[i];
        assert(one->length <= room);
        one->crc = 0;
        if (gpusnap_read_process(implementation, one->pid, one->address, data, one->length,
                                 &one->crc) != one->length)
            return i;
        one->whole = gpusnap_is_whole(data, one->length, page);
        data += one->length;
        room -= one->length;
    }
    return count;
}
