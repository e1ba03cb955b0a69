/* The search for pages that are not all zero: a page of data is known after its first block, a
 * page of zeroes costs a read of all of it. */
#include <string.h>

#include "pages.h"
#include "runs.h"

enum { BLOCK = 128, WORD = sizeof(uint64_t) };

/* Whether all of a block is zero. */
typedef int block_test(const uint8_t *data);

static inline uint64_t word(const uint8_t *data)
{
    uint64_t value;
    memcpy(&value, data, sizeof value);
    return value;
}

static inline int portable(const uint8_t *data)
{
    uint64_t all = 0;
    for (int i = 0; i < BLOCK; i += WORD)
        all |= word(data + i);
    return all == 0;
}

/* Inlined into one loop a way, and the test into it. */
static inline __attribute__((always_inline)) void
search(block_test *block_is_zero, const uint8_t *data, size_t length, size_t page,
       struct runs *found)
{
    for (size_t offset = 0; offset < length; offset += page) {
        size_t size = length - offset < page ? length - offset : page, at = 0;
        while (at + BLOCK <= size && block_is_zero(data + offset + at))
            at += BLOCK;
        while (at < size && data[offset + at] == 0)
            at++;
        if (at < size)
            runs_add(found, offset, size);
    }
}

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))

static inline AVX2 __m256i load(const uint8_t *data)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)data);
}

static inline AVX2 int avx2(const uint8_t *data)
{
    __m256i low = _mm256_or_si256(load(data), load(data + 32));
    __m256i high = _mm256_or_si256(load(data + 64), load(data + 96));
    __m256i all = _mm256_or_si256(low, high);
    return _mm256_testz_si256(all, all);
}

static AVX2 void search_avx2(const uint8_t *data, size_t length, size_t page, struct runs *found)
{
    search(avx2, data, length, page, found);
}
#endif

static void search_portable(const uint8_t *data, size_t length, size_t page, struct runs *found)
{
    search(portable, data, length, page, found);
}

size_t gpusnap_nonzero_pages(const uint8_t *data, size_t length, size_t page,
                             struct gpusnap_run *runs, size_t room)
{
    assert(data != NULL || length == 0);
    assert(page > 0);
    struct runs found = {runs, room, 0};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        search_avx2(data, length, page, &found);
        return found.count;
    }
#endif
    search_portable(data, length, page, &found);
    return found.count;
}

int gpusnap_is_whole(const uint8_t *data, size_t length, size_t page)
{
    for (size_t at = 0; at < length; at += page) {
        size_t size = length - at < page ? length - at : page;
        struct gpusnap_run run;
        if (gpusnap_nonzero_pages(data + at, size, page, &run, 1) == 0)
            return 0;
    }
    return 1;
}
