#define _GNU_SOURCE
#include "straight.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>

#include "crc32.h"
#include "memory.h"

/* Of one piece so many runs are stored at most: with more, the nearest become one, which keeps the
 * table of what is stored small where memory is scattered. gpusnap.datapath.source does the same. */
enum { MOST_RUNS = 16 };

enum { MOST_PAGES = 256, MOST_FOUND = MOST_PAGES / 2, MOST_PARTS = 256 };

/* What lies in `data` and is not in the file yet. */
struct batch {
    int implementation; /* of the CRC-32 */
    size_t page;
    uint8_t *data;
    size_t room;
    size_t held; /* bytes of `data` in use */
    struct iovec parts[MOST_PARTS];
    size_t count;
    struct gpusnap_stored *stored;
    size_t most;
    size_t told;    /* entries of `stored`, those of the batch included */
    size_t written; /* of them, what is in the file */
    uint64_t done;  /* bytes of the runs, those of the batch included */
};

struct gap {
    uint64_t length;
    size_t before; /* number of the run in front of it */
};

static int by_length(const void *first, const void *second)
{
    const struct gap *a = first, *b = second;
    if (a->length != b->length)
        return a->length < b->length ? -1 : 1;
    return a->before < b->before ? -1 : 1;
}

static int by_place(const void *first, const void *second)
{
    const struct gap *a = first, *b = second;
    return a->before < b->before ? -1 : 1;
}

/* Leave the widest gaps only; returns how many runs there are then. */
static size_t join(struct gpusnap_run *runs, size_t count)
{
    if (count <= MOST_RUNS)
        return count;
    struct gap gaps[MOST_FOUND];
    for (size_t i = 0; i + 1 < count; i++)
        gaps[i] = (struct gap){runs[i + 1].offset - runs[i].offset - runs[i].length, i};
    qsort(gaps, count - 1, sizeof *gaps, by_length);
    struct gap *widest = gaps + (count - 1) - (MOST_RUNS - 1);
    qsort(widest, MOST_RUNS - 1, sizeof *widest, by_place);
    size_t first = 0;
    for (size_t i = 0; i < MOST_RUNS; i++) {
        size_t last = i < MOST_RUNS - 1 ? widest[i].before : count - 1;
        uint64_t begin = runs[first].offset;
        runs[i] = (struct gpusnap_run){begin, runs[last].offset + runs[last].length - begin};
        first = last + 1;
    }
    return MOST_RUNS;
}

/* Write what the batch holds; 0 where the file has an error. */
static int flush(struct gpusnap_straight *copy, struct batch *batch)
{
    struct iovec *part = batch->parts;
    size_t left = batch->count;
    while (left > 0) {
        ssize_t done = pwritev(copy->file, part, (int)left, (off_t)copy->position);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0) {
            copy->error = done < 0 ? errno : EIO;
            return 0;
        }
        copy->position += (uint64_t)done;
        for (; left > 0 && (size_t)done >= part->iov_len; part++, left--)
            done -= (ssize_t)part->iov_len;
        if (left > 0) {
            part->iov_base = (uint8_t *)part->iov_base + done;
            part->iov_len -= (size_t)done;
        }
    }
    batch->count = batch->held = 0;
    batch->written = batch->told;
    copy->done = batch->done;
    return 1;
}

static void hold(struct batch *batch, uint8_t *data, size_t length)
{
    struct iovec *last = batch->count ? &batch->parts[batch->count - 1] : NULL;
    if (last != NULL && (uint8_t *)last->iov_base + last->iov_len == data)
        last->iov_len += length;
    else
        batch->parts[batch->count++] = (struct iovec){data, length};
}

/* Read a piece into the batch; 0 where the kernel refuses some of it. */
static int take(const struct gpusnap_straight *copy, struct batch *batch, uint64_t offset,
                size_t size)
{
    uint8_t *piece = batch->data + batch->held;
    uint32_t crc = 0;
    if (gpusnap_read_process(batch->implementation, copy->pid, copy->base + offset, piece, size,
                             &crc) != size)
        return 0;
    struct gpusnap_run runs[MOST_FOUND];
    size_t count =
        join(runs, gpusnap_nonzero_pages(piece, size, batch->page, runs, MOST_FOUND));
    for (size_t i = 0; i < count; i++) {
        uint8_t *begin = piece + runs[i].offset;
        if (runs[i].length < size)
            crc = gpusnap_crc32(batch->implementation, 0, begin, runs[i].length);
        assert(batch->told < batch->most);
        batch->stored[batch->told++] = (struct gpusnap_stored){
            offset + runs[i].offset, (uint32_t)runs[i].length, crc};
        hold(batch, begin, runs[i].length);
    }
    batch->held += size;
    batch->done += size;
    return 1;
}

/* Copy a run piece by piece; 0 where that ends before the run does. */
static int take_run(struct gpusnap_straight *copy, struct batch *batch, struct gpusnap_run run)
{
    uint64_t end = run.offset + run.length;
    for (uint64_t offset = run.offset, size; offset < end; offset += size) {
        size = copy->step - offset % copy->step;
        if (size > end - offset)
            size = end - offset;
        int full = batch->held + size > batch->room || batch->count + MOST_RUNS > MOST_PARTS;
        if ((full && !flush(copy, batch)) || !take(copy, batch, offset, size))
            return 0;
    }
    return 1;
}

size_t gpusnap_copy_straight(int implementation, struct gpusnap_straight *copy,
                             const struct gpusnap_run *runs, size_t count, size_t page,
                             uint8_t *data, size_t room, struct gpusnap_stored *stored,
                             size_t most)
{
    assert(copy != NULL && (runs != NULL || count == 0));
    assert(copy->step > 0 && copy->step <= room && copy->step <= MOST_PAGES * page);
    struct batch batch = {
        .implementation = implementation,
        .page = page,
        .data = data,
        .room = room,
        .stored = stored,
        .most = most,
    };
    copy->error = 0;
    copy->done = 0;
    for (size_t i = 0; i < count && take_run(copy, &batch, runs[i]); i++)
        ;
    if (copy->error == 0)
        flush(copy, &batch);
    return batch.written;
}
