/* Byte planes by plain loops: compilers turn them into vector instructions that every processor
 * of the kind has, and wider ones are no faster (measured, 256 KiB at a time). */
#include "planes.h"

#include <assert.h>
#include <string.h>

static void split_2(const uint8_t *restrict data, size_t count, uint8_t *restrict out)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = data[2 * i];
        out[count + i] = data[2 * i + 1];
    }
}

static void split_4(const uint8_t *restrict data, size_t count, uint8_t *restrict out)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = data[4 * i];
        out[count + i] = data[4 * i + 1];
        out[2 * count + i] = data[4 * i + 2];
        out[3 * count + i] = data[4 * i + 3];
    }
}

static void join_2(const uint8_t *restrict data, size_t count, uint8_t *restrict out)
{
    for (size_t i = 0; i < count; i++) {
        out[2 * i] = data[i];
        out[2 * i + 1] = data[count + i];
    }
}

static void join_4(const uint8_t *restrict data, size_t count, uint8_t *restrict out)
{
    for (size_t i = 0; i < count; i++) {
        out[4 * i] = data[i];
        out[4 * i + 1] = data[count + i];
        out[4 * i + 2] = data[2 * count + i];
        out[4 * i + 3] = data[3 * count + i];
    }
}

static void copy_rest(const uint8_t *data, size_t length, size_t width, uint8_t *out)
{
    size_t rest = length % width;
    if (rest > 0)
        memcpy(out + length - rest, data + length - rest, rest);
}

void gpusnap_split_planes(const uint8_t *data, size_t length, size_t width, uint8_t *out)
{
    assert(width == 2 || width == 4);
    assert((data != NULL && out != NULL) || length == 0);
    (width == 2 ? split_2 : split_4)(data, length / width, out);
    copy_rest(data, length, width, out);
}

void gpusnap_join_planes(const uint8_t *data, size_t length, size_t width, uint8_t *out)
{
    assert(width == 2 || width == 4);
    assert((data != NULL && out != NULL) || length == 0);
    (width == 2 ? join_2 : join_4)(data, length / width, out);
    copy_rest(data, length, width, out);
}
