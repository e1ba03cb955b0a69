/* CRC-32 with the instructions of Armv8's CRC32 extension.
 *
 * One instruction takes 8 bytes but waits for the one before it, so three blocks that lie one
 * after another are computed side by side and their states then put together. */
#include "crc32_ways.h"

#ifdef CRC32_HAVE_ARM

#include <string.h>

#if defined(__clang__) /* older ones hide arm_acle.h's functions from per-function targets */
#define ARM_CRC __attribute__((target("crc")))
#define take_byte __builtin_arm_crc32b
#define take_word __builtin_arm_crc32d
#else
#include <arm_acle.h>
#define ARM_CRC __attribute__((target("+crc")))
#define take_byte __crc32b
#define take_word __crc32d
#endif

enum { WORD = 8, BLOCK = 4096, STEP = 3 * BLOCK };

static inline uint64_t word(const uint8_t *data)
{
    uint64_t value;
    memcpy(&value, data, sizeof value);
    return value;
}

static ARM_CRC uint32_t step(uint32_t first, const uint8_t *data)
{
    uint32_t second = 0, third = 0;
    for (size_t i = 0; i < BLOCK; i += WORD) {
        first = take_word(first, word(data + i));
        second = take_word(second, word(data + BLOCK + i));
        third = take_word(third, word(data + 2 * BLOCK + i));
    }
    second ^= crc32_skip(first, BLOCK);
    return third ^ crc32_skip(second, BLOCK);
}

ARM_CRC uint32_t crc32_arm(uint32_t state, const uint8_t *data, size_t length)
{
    for (; length >= STEP; data += STEP, length -= STEP)
        state = step(state, data);
    for (; length >= WORD; data += WORD, length -= WORD)
        state = take_word(state, word(data));
    for (; length > 0; data++, length--)
        state = take_byte(state, *data);
    return state;
}

#endif
