/* Checks what finds pages, makes byte planes and copies memory, also many pieces of it and from a
 * file, against plain loops, on buffers of exactly the size needed: under a sanitizer any byte too
 * much ends the program. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "crc32.h"
#include "extents.h"
#include "memory.h"
#include "pages.h"
#include "pieces.h"
#include "planes.h"
#include "straight.h"

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

/* A mapping of pages, every third of them zero, and one behind it that cannot be used. */
static uint8_t *striped(size_t page, size_t pages)
{
    size_t size = pages * page;
    uint8_t *there = mmap(NULL, size + page, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert(there != MAP_FAILED && mprotect(there + size, page, PROT_NONE) == 0);
    for (size_t i = 0; i < size; i++)
        there[i] = i / page % 3 == 1 ? 0 : (uint8_t)(rand() >> 7 | 1);
    return there;
}

/* Straight copies of six pages, every third of them zero, in pieces of two. */
static void check_straight(size_t page)
{
    enum { LENGTH = 6, MOST = 7 };
    uint8_t *there = striped(page, LENGTH);
    char name[] = "/tmp/gpusnap-driver-XXXXXX";
    struct gpusnap_straight copy = {
        .base = (uint64_t)(uintptr_t)there,
        .step = 2 * page,
        .position = page,
        .pid = getpid(),
        .file = mkstemp(name),
    };
    const int way = GPUSNAP_CRC32_PORTABLE;
    struct gpusnap_run runs[] = {{page, page}, {2 * page, 3 * page}, {5 * page, page}};
    struct gpusnap_stored *stored = malloc(MOST * sizeof *stored);
    uint8_t *data = block(2 * page), *back = block(4 * page);
    size_t count = gpusnap_copy_straight(way, &copy, runs, 3, page, data, 2 * page, stored, MOST);
    expect(count == 2 && copy.error == 0 && copy.done == 5 * page, "all but zeros", count);
    expect(stored[0].offset == 2 * page && stored[0].length == 2 * page, "pages", count);
    expect(stored[1].offset == 5 * page && stored[1].length == page, "a page", count);
    uint32_t crc = gpusnap_crc32(way, 0, there + 2 * page, 2 * page);
    expect(stored[0].crc == crc, "their CRC-32", page);
    crc = gpusnap_crc32(way, 0, there + 5 * page, page);
    expect(stored[1].crc == crc, "its CRC-32", page);
    ssize_t length = pread(copy.file, back, 4 * page, (off_t)page);
    expect(length == (ssize_t)(3 * page), "the length of the file", (size_t)length);
    expect(memcmp(back, there + 2 * page, 2 * page) == 0, "the file", page);
    expect(memcmp(back + 2 * page, there + 5 * page, page) == 0, "its end", page);
    runs[2].length = 2 * page;
    count = gpusnap_copy_straight(way, &copy, runs, 3, page, data, 2 * page, stored, MOST);
    expect(count == 2 && copy.done == 5 * page, "up to what cannot be read", count);
    runs[2].offset = 6 * page;
    count = gpusnap_copy_straight(way, &copy, runs, 3, page, data, 2 * page, stored, MOST);
    expect(count == 1 && copy.done == 4 * page, "what was held before it", count);
    count = gpusnap_copy_straight(way, &copy, runs, 0, page, data, 2 * page, NULL, 0);
    expect(count == 0 && copy.done == 0, "nothing", count);
    close(copy.file);
    unlink(name);
    copy.file = open("/dev/full", O_WRONLY);
    count = gpusnap_copy_straight(way, &copy, runs, 2, page, data, 2 * page, stored, MOST);
    expect(count == 0 && copy.error == ENOSPC, "a full disk", count);
    close(copy.file);
    free(back);
    free(data);
    free(stored);
    munmap(there, (LENGTH + 1) * page);
}

/* Of more holes than are told of the widest are left, whatever their order. */
static void check_holes(size_t page)
{
    enum { MOST = 256 };
    uint8_t *there = mmap(NULL, MOST * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                          -1, 0);
    assert(there != MAP_FAILED);
    size_t expected = 0;
    for (size_t i = 0; i < MOST; i++)
        if (rand() >> 7 & 1)
            expected += there[i * page] = 1;
    char name[] = "/tmp/gpusnap-driver-XXXXXX";
    struct gpusnap_straight copy = {
        .base = (uint64_t)(uintptr_t)there,
        .step = MOST * page,
        .pid = getpid(),
        .file = mkstemp(name),
    };
    struct gpusnap_run run = {0, MOST * page};
    struct gpusnap_stored *stored = malloc(MOST * sizeof *stored);
    uint8_t *data = block(MOST * page);
    size_t count = gpusnap_copy_straight(GPUSNAP_CRC32_PORTABLE, &copy, &run, 1, page, data,
                                         MOST * page, stored, MOST);
    expect(count == 16 && copy.done == run.length, "widest holes", count);
    size_t found = 0, end = 0;
    for (size_t i = 0; i < count; i++) {
        expect(stored[i].offset >= end + (i > 0), "their order", i);
        end = stored[i].offset + stored[i].length;
        for (size_t at = stored[i].offset; at < end; at += page)
            found += there[at];
    }
    expect(found == expected && end <= MOST * page, "all pages", found);
    close(copy.file);
    unlink(name);
    free(data);
    free(stored);
    munmap(there, MOST * page);
}

/* Of pieces of one page, two and none; the last reaches where nothing can be read. */
static void check_pieces(size_t page)
{
    enum { ALL = 4, LENGTH = 6 };
    uint8_t *there = striped(page, LENGTH);
    uint64_t begin = (uint64_t)(uintptr_t)there;
    struct gpusnap_piece pieces[ALL] = {
        {.address = begin + 2 * page, .length = 2 * page, .pid = getpid()},
        {.address = begin, .length = 0, .pid = getpid()},
        {.address = begin, .length = 2 * page, .pid = getpid()},
        {.address = begin + 5 * page, .length = 2 * page, .pid = getpid()},
    };
    size_t room = LENGTH * page;
    uint8_t *data = block(room);
    size_t count = gpusnap_read_pieces(GPUSNAP_CRC32_PORTABLE, pieces, ALL, page, data, room);
    expect(count == 3, "read_pieces", count);
    expect(memcmp(data, there + 2 * page, 2 * page) == 0, "the first piece", page);
    expect(memcmp(data + 2 * page, there, 2 * page) == 0, "the third piece", page);
    expect(pieces[0].whole == 1 && pieces[2].whole == 0, "whole", page);
    uint32_t crc = gpusnap_crc32(GPUSNAP_CRC32_PORTABLE, 0, data, 2 * page);
    expect(pieces[0].crc == crc && pieces[1].crc == 0, "CRC-32 of a piece", page);
    count = gpusnap_read_pieces(GPUSNAP_CRC32_PORTABLE, NULL, 0, page, NULL, 0);
    expect(count == 0, "none", count);
    free(data);
    munmap(there, (LENGTH + 1) * page);
}

static int file_of(const uint8_t *data, size_t length)
{
    char name[] = "/tmp/gpusnap-driver-XXXXXX";
    int file = mkstemp(name);
    assert(file >= 0 && unlink(name) == 0 && write(file, data, length) == (ssize_t)length);
    return file;
}

static size_t put(int file, const struct gpusnap_extent *extents, size_t count, size_t page,
                  size_t room)
{
    uint8_t *buffer = block(room);
    size_t done = gpusnap_put_extents(GPUSNAP_CRC32_PORTABLE, file, extents, count, page, buffer,
                                      room);
    free(buffer);
    return done;
}

/* As long as takes several looks for zeros, put into empty memory of which the end is missing. */
static void check_extents(size_t page)
{
    enum { LENGTH = 600 };
    size_t size = LENGTH * page;
    uint8_t *data = striped(page, LENGTH), *there = striped(page, LENGTH);
    memset(there, 0, size);
    int file = file_of(data, size);
    uint64_t begin = (uint64_t)(uintptr_t)there;
    uint32_t crc = gpusnap_crc32(GPUSNAP_CRC32_PORTABLE, 0, data, size);
    uint32_t first = gpusnap_crc32(GPUSNAP_CRC32_PORTABLE, 0, data, page);
    const struct gpusnap_extent good = {0, size, begin, getpid(), crc};
    const struct gpusnap_extent only_checked[] = {{0, size, 0, 0, crc}, {0, page, 0, 0, first}};
    expect(put(file, only_checked, 2, page, size) == 2, "only checked", size);
    const struct gpusnap_extent wrong[] = {
        {0, size, begin, getpid(), crc ^ 1},                   /* another sum */
        {1, size, begin, getpid(), crc},                       /* beyond the file */
        {UINT64_MAX - 1, page, begin, getpid(), first},        /* nowhere */
        {0, page, UINT64_MAX - 1, getpid(), first},            /* nobody's address */
        {0, page, begin + size, getpid(), first},              /* memory that takes nothing */
        {0, page, begin, -1, first},                           /* nobody */
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        expect(put(file, &wrong[i], 1, page, size) == 0, "a wrong extent", i);
    for (size_t i = 0; i < size; i++)
        expect(there[i] == 0, "untouched memory", i);
    expect(put(file, (struct gpusnap_extent[]){good, wrong[0]}, 2, page, size) == 1, "put", size);
    expect(memcmp(there, data, size) == 0, "what was put", size);
    close(file);
    munmap(data, size + page);
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
    check_pieces(page);
    check_straight(page);
    check_holes(page);
    check_extents(page);
    puts("memory");
    return 0;
}
