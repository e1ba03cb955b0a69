/* CRC-32 of data that is not at hand: zero bytes skipped, pieces put together. */
#include <assert.h>

#include "crc32.h"
#include "crc32_tables.h"
#include "crc32_ways.h"

/* Product of two polynomials modulo the CRC's: bit 31 stands for x^0. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (int bit = 31; bit >= 0; bit--) {
        product ^= b & (0u - ((a >> bit) & 1u));
        b = (b >> 1) ^ (CRC32_POLYNOMIAL & (0u - (b & 1u)));
    }
    return product;
}

uint32_t crc32_skip(uint32_t state, uint64_t length)
{
    for (int i = 0; length != 0; i++, length >>= 1)
        if (length & 1)
            state = multiply(state, crc32_doubling_powers[i]);
    return state;
}

/* The inversions before and after cancel out, so finished CRCs combine as states do. */
uint32_t gpusnap_crc32_combine(uint32_t first, uint32_t second, uint64_t second_length)
{
    return crc32_skip(first, second_length) ^ second;
}

static uint32_t word(const uint8_t *data)
{
    return (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
           (uint32_t)data[3] << 24;
}

uint32_t gpusnap_crc32_chain(uint32_t first, const uint8_t *pieces, size_t count,
                             const struct gpusnap_crc32_table *table)
{
    assert(table != NULL && table->unit > 0 && (pieces != NULL || count == 0));
    for (; count > 0; count--, pieces += table->stride) {
        uint64_t length = word(pieces + table->length_at) + table->unit - 1;
        length -= length % table->unit;
        first = gpusnap_crc32_combine(first, word(pieces + table->crc_at), length);
    }
    return first;
}
