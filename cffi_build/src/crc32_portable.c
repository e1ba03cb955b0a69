/* CRC-32 by table, 16 bytes a step, on any processor of any byte order. */
#include "crc32_tables.h"
#include "crc32_ways.h"

enum { STEP = 16, STATE = sizeof(uint32_t) };

/* Each byte of the step reaches the end through the zeroes after it: one table a distance.
 * The state is data before its time: it goes in with the first four bytes. */
static inline uint32_t step(uint32_t state, const uint8_t *data)
{
    uint32_t next = 0;
#pragma GCC unroll 4
    for (int i = 0; i < STATE; i++)
        next ^= crc32_slices[STEP - 1 - i][data[i] ^ ((state >> (8 * i)) & 0xff)];
#pragma GCC unroll 12
    for (int i = STATE; i < STEP; i++)
        next ^= crc32_slices[STEP - 1 - i][data[i]];
    return next;
}

uint32_t crc32_portable(uint32_t state, const uint8_t *data, size_t length)
{
    for (; length >= STEP; data += STEP, length -= STEP)
        state = step(state, data);
    for (; length > 0; data++, length--)
        state = (state >> 8) ^ crc32_slices[0][(state ^ *data) & 0xff];
    return state;
}
