/* CRC-32 with VPCLMULQDQ on AVX-512 registers: 256 bytes a step in four lanes of 512 bits.
 *
 * The same folding as in crc32_pclmul.c, on four 128-bit parts of a register at once. What is
 * left at the end is 64 bytes with the remainder of all data so far: they and the rest go
 * through crc32_pclmul. */
#include "crc32_ways.h"

#ifdef CRC32_HAVE_X86

#include <immintrin.h>

#include "crc32_tables.h"

#define VPCLMUL __attribute__((target("avx512f,vpclmulqdq,pclmul")))

enum { LANE = 64, LANES = 4, STEP = LANE * LANES, XOR_OF_THREE = 0x96 };

static inline VPCLMUL __m512i fold(__m512i remainder, __m512i by, __m512i data)
{
    __m512i low = _mm512_clmulepi64_epi128(remainder, by, 0x00);
    __m512i high = _mm512_clmulepi64_epi128(remainder, by, 0x11);
    return _mm512_ternarylogic_epi64(low, high, data, XOR_OF_THREE);
}

static inline VPCLMUL __m512i constants(uint64_t low, uint64_t high)
{
    return _mm512_broadcast_i32x4(_mm_set_epi64x((int64_t)high, (int64_t)low));
}

VPCLMUL uint32_t crc32_vpclmul(uint32_t state, const uint8_t *data, size_t length)
{
    if (length < STEP)
        return crc32_pclmul(state, data, length);

    const __m512i by_step = constants(CRC32_FOLD_2048_LOW, CRC32_FOLD_2048_HIGH);
    const __m512i by_lane = constants(CRC32_FOLD_512_LOW, CRC32_FOLD_512_HIGH);
    __m512i lanes[LANES];
    for (int i = 0; i < LANES; i++)
        lanes[i] = _mm512_loadu_si512(data + LANE * i);
    __m512i start = _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state));
    lanes[0] = _mm512_xor_si512(lanes[0], start);

    for (data += STEP, length -= STEP; length >= STEP; data += STEP, length -= STEP)
        for (int i = 0; i < LANES; i++)
            lanes[i] = fold(lanes[i], by_step, _mm512_loadu_si512(data + LANE * i));

    __m512i remainder = lanes[0];
    for (int i = 1; i < LANES; i++)
        remainder = fold(remainder, by_lane, lanes[i]);
    uint8_t bytes[LANE];
    _mm512_storeu_si512(bytes, remainder);
    return crc32_pclmul(crc32_pclmul(0, bytes, LANE), data, length);
}

#endif
