/* CRC-32 with VPCLMULQDQ on AVX registers, for processors without AVX-512: 256 bytes a step in
 * eight lanes of 256 bits.
 *
 * The same as crc32_vpclmul.c on registers half as wide. What is left at the end goes through
 * crc32_pclmul. */
#include "crc32_ways.h"

#ifdef CRC32_HAVE_X86

#include <immintrin.h>

#include "crc32_tables.h"

#define VPCLMUL __attribute__((target("avx2,vpclmulqdq,pclmul")))

enum { LANE = 32, LANES = 8, STEP = LANE * LANES };

static inline VPCLMUL __m256i load(const uint8_t *data)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)data);
}

static inline VPCLMUL __m256i fold(__m256i remainder, __m256i by, __m256i data)
{
    __m256i low = _mm256_clmulepi64_epi128(remainder, by, 0x00);
    __m256i high = _mm256_clmulepi64_epi128(remainder, by, 0x11);
    return _mm256_xor_si256(_mm256_xor_si256(low, high), data);
}

static inline VPCLMUL __m256i constants(uint64_t low, uint64_t high)
{
    return _mm256_broadcastsi128_si256(_mm_set_epi64x((int64_t)high, (int64_t)low));
}

VPCLMUL uint32_t crc32_vpclmul_avx(uint32_t state, const uint8_t *data, size_t length)
{
    if (length < STEP)
        return crc32_pclmul(state, data, length);

    const __m256i by_step = constants(CRC32_FOLD_2048_LOW, CRC32_FOLD_2048_HIGH);
    const __m256i by_lane = constants(CRC32_FOLD_256_LOW, CRC32_FOLD_256_HIGH);
    __m256i lanes[LANES];
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i++)
        lanes[i] = load(data + LANE * i);
    __m256i start = _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)state));
    lanes[0] = _mm256_xor_si256(lanes[0], start);

    for (data += STEP, length -= STEP; length >= STEP; data += STEP, length -= STEP)
#pragma GCC unroll 8
        for (int i = 0; i < LANES; i++)
            lanes[i] = fold(lanes[i], by_step, load(data + LANE * i));

    __m256i remainder = lanes[0];
#pragma GCC unroll 8
    for (int i = 1; i < LANES; i++)
        remainder = fold(remainder, by_lane, lanes[i]);
    uint8_t bytes[LANE];
    _mm256_storeu_si256((__m256i *)(void *)bytes, remainder);
    return crc32_pclmul(crc32_pclmul(0, bytes, LANE), data, length);
}

#endif
