/* Compares every implementation of this processor with a bit-by-bit CRC-32, on buffers of
 * exactly the size needed: under a sanitizer any byte read too much ends the program. */
#include <stdio.h>
#include <stdlib.h>

#include "crc32.h"

enum { SMALL = 1200, OFFSETS = 9 };

static const size_t large[] = {4095, 4096, 12287, 12288, 12289, 3 * 12288 + 7, 65536, 100003};
static const char *const names[] = {
    [GPUSNAP_CRC32_PORTABLE] = "portable",
    [GPUSNAP_CRC32_PCLMUL] = "pclmul",
    [GPUSNAP_CRC32_VPCLMUL_AVX] = "vpclmul_avx",
    [GPUSNAP_CRC32_VPCLMUL] = "vpclmul",
    [GPUSNAP_CRC32_ARM] = "arm",
};

static uint32_t reference(uint32_t value, const uint8_t *data, size_t length)
{
    value = ~value;
    for (size_t i = 0; i < length; i++) {
        value ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            value = (value >> 1) ^ (value & 1 ? 0xEDB88320u : 0);
    }
    return ~value;
}

static void expect(const char *what, size_t length, uint32_t got, uint32_t want)
{
    if (got == want)
        return;
    printf("%s of %zu bytes: got %08x, want %08x\n", what, length, got, want);
    exit(1);
}

static void check_size(size_t length, size_t offset, uint32_t start)
{
    uint8_t *block = malloc(offset + length ? offset + length : 1);
    if (block == NULL)
        exit(2);
    uint8_t *data = block + offset;
    for (size_t i = 0; i < length; i++)
        data[i] = (uint8_t)(rand() >> 7);
    uint32_t want = reference(start, data, length);
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++)
        if (gpusnap_crc32_supported(i))
            expect(names[i], length, gpusnap_crc32(i, start, data, length), want);
    size_t half = length / 3;
    uint32_t first = reference(start, data, half);
    uint32_t second = reference(0, data + half, length - half);
    expect("combine", length, gpusnap_crc32_combine(first, second, length - half), want);
    uint8_t pieces[16] = {0}; /* the first of them is empty */
    for (int i = 0; i < 4; i++) {
        pieces[8 + i] = (uint8_t)(second >> 8 * i);
        pieces[12 + i] = (uint8_t)((length - half) >> 8 * i);
    }
    struct gpusnap_crc32_table table = {.stride = 8, .crc_at = 0, .length_at = 4, .unit = 1};
    expect("chain", length, gpusnap_crc32_chain(first, pieces, 2, &table), want);
    free(block);
}

int main(void)
{
    srand(1);
    for (size_t length = 0; length < SMALL; length++)
        for (size_t offset = 0; offset < OFFSETS; offset++)
            check_size(length, offset, offset % 2 ? 0xDEADBEEFu : 0);
    for (size_t i = 0; i < sizeof large / sizeof *large; i++)
        check_size(large[i], i, (uint32_t)i);
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++)
        if (gpusnap_crc32_supported(i))
            printf("%s\n", names[i]);
    return 0;
}
