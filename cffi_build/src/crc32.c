/* Which way there is on this processor, and zlib's conventions around it. */
#include "crc32.h"

#include <assert.h>

#include "crc32_ways.h"

#ifdef CRC32_HAVE_ARM
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7) /* arch/arm64/include/uapi/asm/hwcap.h */
#endif
#endif

int gpusnap_crc32_supported(int implementation)
{
    switch (implementation) {
    case GPUSNAP_CRC32_PORTABLE:
        return 1;
#ifdef CRC32_HAVE_X86
    case GPUSNAP_CRC32_PCLMUL:
        return __builtin_cpu_supports("pclmul") != 0;
    case GPUSNAP_CRC32_VPCLMUL_AVX:
        return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("avx2")
            && __builtin_cpu_supports("vpclmulqdq");
    case GPUSNAP_CRC32_VPCLMUL:
        return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("avx512f")
            && __builtin_cpu_supports("vpclmulqdq");
#endif
#ifdef CRC32_HAVE_ARM
    case GPUSNAP_CRC32_ARM:
        return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#endif
    default:
        return 0;
    }
}

static uint32_t advance(int implementation, uint32_t state, const uint8_t *data, size_t length)
{
    switch (implementation) {
#ifdef CRC32_HAVE_X86
    case GPUSNAP_CRC32_PCLMUL:
        return crc32_pclmul(state, data, length);
    case GPUSNAP_CRC32_VPCLMUL_AVX:
        return crc32_vpclmul_avx(state, data, length);
    case GPUSNAP_CRC32_VPCLMUL:
        return crc32_vpclmul(state, data, length);
#endif
#ifdef CRC32_HAVE_ARM
    case GPUSNAP_CRC32_ARM:
        return crc32_arm(state, data, length);
#endif
    default:
        return crc32_portable(state, data, length);
    }
}

uint32_t gpusnap_crc32(int implementation, uint32_t value, const uint8_t *data, size_t length)
{
    assert(gpusnap_crc32_supported(implementation));
    assert(data != NULL || length == 0);
    return ~advance(implementation, ~value, data, length);
}
