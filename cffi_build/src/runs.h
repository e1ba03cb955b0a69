/* How runs of pages are put together. Not for use outside src/. */
#ifndef GPUSNAP_RUNS_H
#define GPUSNAP_RUNS_H

#include <assert.h>

#include "pages.h"

struct runs {
    struct gpusnap_run *runs;
    size_t room;
    size_t count;
};

/* Add a page that lies behind all that were added before. */
static inline void runs_add(struct runs *found, uint64_t offset, uint64_t length)
{
    struct gpusnap_run *last = found->count ? &found->runs[found->count - 1] : NULL;
    if (last != NULL && last->offset + last->length == offset) {
        last->length += length;
        return;
    }
    assert(found->count < found->room);
    found->runs[found->count++] = (struct gpusnap_run){offset, length};
}

#endif
