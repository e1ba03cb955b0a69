/* Checks what finds pages, makes byte planes and copies memory against plain loops, on buffers of
 * exactly the size needed: under a sanitizer any byte too much ends the program. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "crc32.h"
#include "memory.h"
#include "pages.h"
#include "planes.h"

enum { PAGES = 40, ROUNDS = 300, SYSTEM_PAGES = 130 };

static uint8_t *block(size_t length)
{
    uint8_t *data = malloc(length ? length : 1);
    if (data == NULL)
        exit(2);
    for (size_t i = 0; i < length; i++)
        data[i] = (uint8_t)(rand() >> 7);
    return data;
}

static void expect(int right, const char *what, size_t length)
{
    if (right)
        return;
    printf("%s is wrong for %zu bytes\n", what, length);
    exit(1);
}

static int in_runs(const struct gpusnap_run *runs, size_t count, size_t offset)
{
    for (size_t i = 0; i < count; i++)
        if (offset >= runs[i].offset && offset < runs[i].offset + runs[i].length)
            return 1;
    return 0;
}

/* Pages of zeroes but for at most one byte. */
static void check_nonzero(size_t page, size_t length)
{
    size_t pages = (length + page - 1) / page, room = length / page / 2 + 1;
    uint8_t *data = block(length), *filled = block(pages);
    struct gpusnap_run *runs = malloc(room * sizeof *runs);
    memset(data, 0, length);
    for (size_t i = 0; i < pages; i++) {
        size_t size = length - i * page < page ? length - i * page : page;
        filled[i] &= 1;
        if (filled[i])
            data[i * page + (size_t)rand() % size] = 1;
    }
    size_t count = gpusnap_nonzero_pages(data, length, page, runs, room);
    for (size_t i = 0; i < length; i++)
        expect(in_runs(runs, count, i) == filled[i / page], "nonzero_pages", length);
    free(runs);
    free(filled);
    free(data);
}

static void check_held(size_t count)
{
    static const uint64_t kinds[] = {0, 1ull << 63, 1ull << 62, 1ull << 55, 5ull << 60 >> 2};
    static const int held[] = {0, 1, 1, 0, 0}; /* the last: swapped and guard */
    size_t room = count / 2 + 1;
    uint8_t *kind = block(count);
    uint64_t *words = malloc(count ? count * sizeof *words : 1);
    struct gpusnap_run *runs = malloc(room * sizeof *runs);
    for (size_t i = 0; i < count; i++) {
        kind[i] %= 5;
        words[i] = kinds[kind[i]];
    }
    size_t found = gpusnap_held_pages(words, count, 4096, runs, room);
    for (size_t i = 0; i < count; i++)
        expect(in_runs(runs, found, i * 4096) == held[kind[i]], "held_pages", count);
    free(runs);
    free(words);
    free(kind);
}

static void check_planes(size_t length, size_t width)
{
    uint8_t *data = block(length), *planes = block(length), *back = block(length);
    size_t count = length / width;
    gpusnap_split_planes(data, length, width, planes);
    for (size_t i = 0; i < count * width; i++)
        expect(planes[i % width * count + i / width] == data[i], "split_planes", length);
    gpusnap_join_planes(planes, length, width, back);
    expect(memcmp(back, data, length) == 0, "join_planes", length);
    free(back);
    free(planes);
    free(data);
}

/* From memory of which the end may not be used: as much as there is goes over, and no more. */
static void check_copies(size_t length, size_t missing)
{
    size_t page = (size_t)getpagesize(), size = SYSTEM_PAGES * page;
    uint8_t *there = mmap(NULL, size + page, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert(there != MAP_FAILED && mprotect(there + size, page, PROT_NONE) == 0);
    uint8_t *data = block(length);
    uint8_t *from = there + size + missing - length;
    uint64_t address = (uint64_t)(uintptr_t)from;
    size_t done = gpusnap_write_process(getpid(), address, data, length);
    expect(done == length - missing && memcmp(from, data, done) == 0, "write_process", length);
    memset(data, 0, length);
    uint32_t crc = 0;
    size_t read = gpusnap_read_process(GPUSNAP_CRC32_PORTABLE, getpid(), address, data, length,
                                       &crc);
    expect(read == done && memcmp(from, data, read) == 0, "read_process", length);
    expect(crc == gpusnap_crc32(GPUSNAP_CRC32_PORTABLE, 0, data, read), "its CRC-32", length);
    read = gpusnap_read_process(GPUSNAP_CRC32_PORTABLE, getpid(), address, data, length, NULL);
    expect(read == done && memcmp(from, data, read) == 0, "read_process alone", length);
    free(data);
    munmap(there, size + page);
}

int main(void)
{
    srand(1);
    for (int round = 0; round < ROUNDS; round++) {
        size_t page = 1 + (size_t)rand() % 700;
        check_nonzero(page, (size_t)rand() % (PAGES * page));
        check_held((size_t)rand() % PAGES);
        check_planes((size_t)rand() % 2000, 2);
        check_planes((size_t)rand() % 2000, 4);
    }
    check_nonzero(4096, 0);
    check_nonzero(4096, 16 * 4096);
    size_t page = (size_t)getpagesize();
    check_copies(0, 0);
    check_copies(5, 0);
    check_copies(100 * page + 3, 0);
    check_copies(100 * page + 3, page);
    check_copies(2 * page, 2 * page);
    puts("memory");
    return 0;
}
