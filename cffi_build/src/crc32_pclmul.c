/* CRC-32 with PCLMULQDQ: 64 bytes a step in four lanes of 128 bits.
 *
 * Folding, after Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
 * Instruction" (Intel, 2009): 128 bits of data followed by D more bits have the same remainder
 * as (those 128 bits times x^D modulo P) added to the 128 bits that lie D further on. The two
 * 64-bit halves are multiplied by their own constant, so the product fits in 128 bits again.
 * The last 128 bits go through the tables: their time does not show. */
#include "crc32_ways.h"

#ifdef CRC32_HAVE_X86

#include <immintrin.h>

#include "crc32_tables.h"

#define PCLMUL __attribute__((target("sse2,pclmul")))

enum { LANE = 16, LANES = 4, STEP = LANE * LANES };

static inline PCLMUL __m128i load(const uint8_t *data)
{
    return _mm_loadu_si128((const __m128i *)(const void *)data);
}

static inline PCLMUL __m128i fold(__m128i remainder, __m128i by, __m128i data)
{
    __m128i low = _mm_clmulepi64_si128(remainder, by, 0x00);
    __m128i high = _mm_clmulepi64_si128(remainder, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), data);
}

/* The state that 16 bytes and then the rest lead to from 0. */
static PCLMUL uint32_t finish(__m128i remainder, const uint8_t *data, size_t length)
{
    uint8_t bytes[LANE];
    _mm_storeu_si128((__m128i *)(void *)bytes, remainder);
    return crc32_portable(crc32_portable(0, bytes, LANE), data, length);
}

PCLMUL uint32_t crc32_pclmul(uint32_t state, const uint8_t *data, size_t length)
{
    if (length < STEP)
        return crc32_portable(state, data, length);

    const __m128i by_step = _mm_set_epi64x(CRC32_FOLD_512_HIGH, CRC32_FOLD_512_LOW);
    const __m128i by_lane = _mm_set_epi64x(CRC32_FOLD_128_HIGH, CRC32_FOLD_128_LOW);
    __m128i lanes[LANES];
    for (int i = 0; i < LANES; i++)
        lanes[i] = load(data + LANE * i);
    lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128((int)state));

    for (data += STEP, length -= STEP; length >= STEP; data += STEP, length -= STEP)
        for (int i = 0; i < LANES; i++)
            lanes[i] = fold(lanes[i], by_step, load(data + LANE * i));

    __m128i remainder = lanes[0];
    for (int i = 1; i < LANES; i++)
        remainder = fold(remainder, by_lane, lanes[i]);
    for (; length >= LANE; data += LANE, length -= LANE)
        remainder = fold(remainder, by_lane, load(data));
    return finish(remainder, data, length);
}

#endif
