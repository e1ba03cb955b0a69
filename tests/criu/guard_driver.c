/* Checks the parts of the guard by themselves; run with sanitizers by test_guard_sources.py. Prints
 * what it has checked. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "imports.h"
#include "pagemap.h"
#include "ranges.h"

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                       \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

enum { PAGE = 4096, PAGES = 64 };

static const char good[] = "gpusnap-guard 1\n"
                           "7 1000 3000\n"
                           "7 3000 4000\n"
                           "7 ffff000 ffffffff0000\n"
                           "12 1000 2000\n"
                           "end 4\n";

/* Parse a copy that is exactly as long as it must be, for the sanitizer to see its end. */
static const char *parse(struct ranges *ranges, const char *text, size_t length)
{
    char *copy = malloc(length + 1);
    CHECK(copy != NULL);
    memcpy(copy, text, length);
    copy[length] = '\0';
    const char *wrong = ranges_parse(ranges, copy, length, PAGE);
    CHECK(wrong == NULL || (ranges->count == 0 && ranges->items == NULL));
    free(copy);
    return wrong;
}

static void check_parsing(void)
{
    static const char others[] = "\0\n 01789afgFx-+.e";
    char text[sizeof(good)];
    struct ranges ranges;
    CHECK(parse(&ranges, good, sizeof(good) - 1) == NULL);
    CHECK(ranges.count == 4 && ranges.items[2].end == 0xffffffff0000 && ranges.items[3].pid == 12);
    ranges_free(&ranges);
    for (size_t length = 0; length < sizeof(good) - 1; length++)
        CHECK(parse(&ranges, good, length) != NULL);
    for (size_t at = 0; at < sizeof(good) - 1; at++)
        for (size_t i = 0; i < sizeof(others) - 1; i++) {
            memcpy(text, good, sizeof(good));
            text[at] = others[i];
            (void)parse(&ranges, text, sizeof(good) - 1);
            for (size_t k = 0; k < ranges.count; k++)
                CHECK(ranges.items[k].start < ranges.items[k].end
                      && ranges.items[k].start % PAGE == 0 && ranges.items[k].end % PAGE == 0);
            ranges_free(&ranges);
        }
}

static void check_refusals(void)
{
    static const char *const wrong[] = {
        "", "gpusnap-guard 1\n", "gpusnap-guard 1\nend 1\n", "gpusnap-guard 1\nend 0",
        "gpusnap-guard 1\n7 1000 1000\nend 1\n", "gpusnap-guard 1\n0 1000 2000\nend 1\n",
        "gpusnap-guard 1\n7 1000 10000000000001000\nend 1\n",
        "gpusnap-guard 1\n18446744073709551617 1000 2000\nend 1\n",
        "gpusnap-guard 1\n7 1000 3000\n7 2000 4000\nend 2\n",
        "gpusnap-guard 1\n8 1000 2000\n7 1000 2000\nend 2\n", "gpusnap-guard 1\nend 0\n\n",
    };
    struct ranges ranges;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
        CHECK(parse(&ranges, wrong[i], strlen(wrong[i])) != NULL);
    CHECK(parse(&ranges, "gpusnap-guard 1\nend 0\n", 22) == NULL && ranges.count == 0);
    CHECK(ranges_next(&ranges, 7, 0) == NULL);
    ranges_free(&ranges);
}

static void check_next(void)
{
    struct ranges ranges;
    CHECK(parse(&ranges, good, sizeof(good) - 1) == NULL);
    CHECK(ranges_next(&ranges, 7, 0) == &ranges.items[0]);
    CHECK(ranges_next(&ranges, 7, 0x2fff) == &ranges.items[0]);
    CHECK(ranges_next(&ranges, 7, 0x3000) == &ranges.items[1]);
    CHECK(ranges_next(&ranges, 7, 0xffffffff0000) == NULL);
    CHECK(ranges_next(&ranges, 12, 0x1000) == &ranges.items[3]);
    CHECK(ranges_next(&ranges, 12, 0x2000) == NULL);
    CHECK(ranges_next(&ranges, 6, 0) == NULL && ranges_next(&ranges, 13, 0) == NULL);
    ranges_free(&ranges);
}

/* Hide pages of the first PAGES behind `base` by chance. */
static size_t hide(struct range *items, pid_t pid, uint64_t base, char hidden[PAGES])
{
    size_t count = 0;
    memset(hidden, 0, PAGES);
    for (int page = rand() % 8; page < PAGES;) {
        int length = 1 + rand() % 9;
        length = length < PAGES - page ? length : PAGES - page;
        items[count++] = (struct range){ (uint64_t)pid, base + (uint64_t)page * PAGE,
                                         base + (uint64_t)(page + length) * PAGE };
        memset(hidden + page, 1, (size_t)length);
        page += length + rand() % 6;
    }
    return count;
}

static void check_blank(void)
{
    struct range items[PAGES];
    struct ranges ranges = { .items = items };
    char hidden[PAGES];
    uint64_t entries[PAGES];
    for (int round = 0; round < 2000; round++) {
        const uint64_t base = 0x7f0000000000;
        ranges.count = hide(items, 7, base, hidden);
        const int from = rand() % PAGES, length = 1 + rand() % (PAGES - from);
        memset(entries, 0xff, sizeof(entries));
        pagemap_blank(&ranges, 7, entries + from, (size_t)length * 8,
                      (base / PAGE + (uint64_t)from) * 8, PAGE);
        for (int page = 0; page < PAGES; page++) {
            const int blank = page >= from && page < from + length && hidden[page];
            CHECK(entries[page] == (blank ? 0 : UINT64_MAX));
        }
    }
}

/* Collect the pages as CRIU does, which goes on where a scan has stopped. */
static int walk(const struct ranges *ranges, int file, uint64_t base, char found[PAGES])
{
    uint64_t regions[PAGES][3];
    struct pagemap_scan scan = { .size = sizeof(scan),
                                 .start = base,
                                 .end = base + PAGES * PAGE,
                                 .regions = (uintptr_t)regions,
                                 .region_count = PAGES,
                                 .any_of = PAGEMAP_PRESENT | PAGEMAP_SWAPPED,
                                 .returned = PAGEMAP_PRESENT };
    memset(found, 0, PAGES);
    CHECK(pagemap_asks_for_pages(&scan));
    for (; scan.start < base + PAGES * PAGE; scan.start = scan.walk_end) {
        int count = pagemap_scan(ranges, getpid(), file, &scan);
        if (count < 0)
            return -1;
        CHECK(scan.walk_end > scan.start && scan.end == base + PAGES * PAGE);
        for (int i = 0; i < count; i++)
            for (uint64_t at = regions[i][0]; at < regions[i][1]; at += PAGE)
                found[(at - base) / PAGE]++;
    }
    return 0;
}

static int check_scan(void)
{
    struct range items[PAGES];
    struct ranges ranges = { .items = items };
    char hidden[PAGES], found[PAGES];
    char *memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    CHECK(memory != MAP_FAILED && file >= 0);
    memset(memory, 1, PAGES * PAGE);
    for (int round = 0; round < 500; round++) {
        ranges.count = hide(items, getpid(), (uintptr_t)memory, hidden);
        if (walk(&ranges, file, (uintptr_t)memory, found) != 0)
            return 0; /* this kernel has no such ioctl */
        for (int page = 0; page < PAGES; page++)
            CHECK(found[page] == !hidden[page]);
    }
    CHECK(close(file) == 0 && munmap(memory, PAGES * PAGE) == 0);
    return 1;
}

static void check_files(void)
{
    char folder[] = "/tmp/guard-driver-XXXXXX", path[64];
    int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    CHECK(pagemap_pid(pagemap) == getpid() && pagemap_pid(maps) == -1 && pagemap_pid(-1) == -1);
    /* Of that name, but no file of /proc */
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof(path), "%s/pagemap", folder);
    int other = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(other >= 0 && pagemap_pid(other) == -1);
    struct ranges ranges;
    CHECK(write(other, good, sizeof(good) - 1) == (ssize_t)sizeof(good) - 1);
    CHECK(ranges_read(&ranges, path, PAGE) == NULL && ranges.count == 4);
    ranges_free(&ranges);
    CHECK(strcmp(ranges_read(&ranges, folder, PAGE), strerror(EISDIR)) == 0);
    CHECK(unlink(path) == 0 && rmdir(folder) == 0);
    CHECK(strcmp(ranges_read(&ranges, path, PAGE), strerror(ENOENT)) == 0);
    close(pagemap);
    close(maps);
    close(other);
}

static pid_t other_getppid(void)
{
    return -42;
}

static void check_imports(void)
{
    CHECK(getppid() > 0);
    CHECK(imports_replace("getppid", (uintptr_t)other_getppid) > 0);
    CHECK(getppid() == -42);
    CHECK(imports_replace("getppid", (uintptr_t)other_getppid) > 0);
    CHECK(imports_replace("a_function_that_nobody_calls", (uintptr_t)other_getppid) == 0);
}

int main(void)
{
    srand(1);
    check_parsing();
    check_refusals();
    check_next();
    check_blank();
    check_files();
    check_imports();
    puts(check_scan() ? "scanned" : "unscanned");
    return 0;
}
