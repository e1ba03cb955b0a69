/* Reads the list of ranges. Strict: what is not exactly as written down in ranges.h is refused.
 * The numbers are read by hand, for the C library's functions for that bear other names in every
 * few releases, and CRIU's C library may be older than the one this was compiled with. */
#include "ranges.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FIRST_LINE "gpusnap-guard 1\n"
#define LAST_WORD "end "
#define LARGEST_FILE ((size_t)64 << 20)

static int digit(char c, unsigned int base)
{
    int value = -1;
    if (c >= '0' && c <= '9')
        value = c - '0';
    else if (c >= 'a' && c <= 'f')
        value = c - 'a' + 10;
    return value < (int)base ? value : -1;
}

/* Read a number and the one character that must follow it; 0 if it is not there or too large. */
static int number(const char **at, unsigned int base, char after, uint64_t *value)
{
    const char *c = *at;
    uint64_t sum = 0;
    for (int d; (d = digit(*c, base)) >= 0; c++)
        if (__builtin_mul_overflow(sum, (uint64_t)base, &sum)
            || __builtin_add_overflow(sum, (uint64_t)d, &sum))
            return 0;
    if (c == *at || *c != after)
        return 0;
    *at = c + 1;
    *value = sum;
    return 1;
}

static int words(const char **at, const char *expected)
{
    size_t length = strlen(expected);
    if (strncmp(*at, expected, length) != 0)
        return 0;
    *at += length;
    return 1;
}

static int precedes(const struct range *first, const struct range *second)
{
    return first->pid < second->pid || (first->pid == second->pid && first->end <= second->start);
}

static int read_range(const char **at, struct range *range, uint64_t page)
{
    return number(at, 10, ' ', &range->pid) && number(at, 16, ' ', &range->start)
        && number(at, 16, '\n', &range->end) && range->pid > 0 && range->start < range->end
        && range->start % page == 0 && range->end % page == 0;
}

static size_t count_lines(const char *text, size_t length)
{
    size_t lines = 0;
    for (size_t i = 0; i < length; i++)
        lines += text[i] == '\n';
    return lines;
}

static const char *parse_lines(struct ranges *ranges, const char *at, const char *end, uint64_t page)
{
    uint64_t told;
    while (!words(&at, LAST_WORD)) {
        struct range *range = &ranges->items[ranges->count];
        if (at == end)
            return "it is cut short";
        if (!read_range(&at, range, page))
            return "a line of it is no range of whole pages";
        if (ranges->count > 0 && !precedes(range - 1, range))
            return "its ranges are not sorted or overlap";
        ranges->count++;
    }
    if (!number(&at, 10, '\n', &told) || told != ranges->count)
        return "it does not hold as many ranges as it tells";
    return at == end ? NULL : "it goes on behind its end";
}

const char *ranges_parse(struct ranges *ranges, const char *text, size_t length, uint64_t page)
{
    const char *at = text, *wrong;
    assert(text[length] == '\0' && page > 0);
    *ranges = (struct ranges){ 0 };
    if (!words(&at, FIRST_LINE))
        return "it is no list of ranges of this version";
    /* One more than lines: a last line without its end is looked at before it is refused */
    ranges->items = calloc(count_lines(text, length) + 1, sizeof(*ranges->items));
    if (ranges->items == NULL)
        return "there is no memory for it";
    wrong = parse_lines(ranges, at, text + length, page);
    if (wrong != NULL)
        ranges_free(ranges);
    return wrong;
}

/* Read all of an open file into `text`, which has room for a zero byte behind it. */
static const char *read_all(int file, char **text, size_t *length)
{
    size_t room = 1 << 16;
    for (*length = 0, *text = NULL;; room *= 2) {
        char *larger = realloc(*text, room + 1);
        if (larger == NULL)
            return "there is no memory for it";
        *text = larger;
        while (*length < room) {
            ssize_t got = read(file, *text + *length, room - *length);
            if (got < 0 && errno == EINTR)
                continue;
            if (got < 0)
                return strerror(errno);
            if (got == 0) {
                (*text)[*length] = '\0';
                return NULL;
            }
            *length += (size_t)got;
        }
        if (room >= LARGEST_FILE)
            return "it is too long";
    }
}

const char *ranges_read(struct ranges *ranges, const char *path, uint64_t page)
{
    char *text = NULL;
    size_t length = 0;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    *ranges = (struct ranges){ 0 };
    if (file < 0)
        return strerror(errno);
    const char *wrong = read_all(file, &text, &length);
    close(file);
    if (wrong == NULL)
        wrong = ranges_parse(ranges, text, length, page);
    free(text);
    return wrong;
}

const struct range *ranges_next(const struct ranges *ranges, pid_t pid, uint64_t address)
{
    size_t low = 0, high = ranges->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct range *range = &ranges->items[middle];
        if (range->pid < (uint64_t)pid || (range->pid == (uint64_t)pid && range->end <= address))
            low = middle + 1;
        else
            high = middle;
    }
    if (low == ranges->count || ranges->items[low].pid != (uint64_t)pid)
        return NULL;
    return &ranges->items[low];
}

void ranges_free(struct ranges *ranges)
{
    free(ranges->items);
    *ranges = (struct ranges){ 0 };
}
