#define _GNU_SOURCE
#include "straight.h"

#include <assert.h>
#include <errno.h>
#include <unistd.h>

#include "crc32.h"
#include "memory.h"
#include "pages.h"

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

size_t gpusnap_copy_straight(int implementation, struct gpusnap_straight *copy, size_t page,
                             uint8_t *data, size_t room, uint32_t *crcs)
{
    assert(copy != NULL && crcs != NULL);
    assert(copy->first > 0 && copy->first <= room);
    assert(copy->step > 0 && copy->step <= room);
    copy->error = 0;
    copy->rest = 0;
    size_t count = 0;
    for (uint64_t done = 0; done < copy->length; count++) {
        size_t size = count == 0 ? copy->first : copy->step;
        if (size > copy->length - done)
            size = copy->length - done;
        crcs[count] = 0;
        if (gpusnap_read_process(implementation, copy->pid, copy->address + done, data, size,
                                 &crcs[count]) != size)
            break;
        if (!gpusnap_is_whole(data, size, page)) {
            copy->rest = size;
            break;
        }
        copy->error = write_all(copy->file, data, size, copy->position + done);
        if (copy->error != 0)
            break;
        done += size;
    }
    return count;
}
