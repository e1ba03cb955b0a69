/* The words of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst). */
#include "pages.h"
#include "runs.h"

#define PRESENT (UINT64_C(1) << 63)
#define SWAPPED (UINT64_C(1) << 62)
#define GUARD (UINT64_C(1) << 58)

size_t gpusnap_held_pages(const uint64_t *words, size_t count, size_t page,
                          struct gpusnap_run *runs, size_t room)
{
    assert(words != NULL || count == 0);
    struct runs found = {runs, room, 0};
    for (size_t i = 0; i < count; i++)
        if ((words[i] & (PRESENT | SWAPPED)) && !(words[i] & GUARD))
            runs_add(&found, i * page, page);
    return found.count;
}
