/* CRC-32 with zlib's polynomial, by the fastest instructions the processor has. */
#ifndef GPUSNAP_CRC32_H
#define GPUSNAP_CRC32_H

#include <stddef.h>
#include <stdint.h>

/* Slowest first; a number stands for one way on every machine, compiled in there or not. */
enum gpusnap_crc32_implementation {
    GPUSNAP_CRC32_PORTABLE,
    GPUSNAP_CRC32_PCLMUL,
    GPUSNAP_CRC32_VPCLMUL_AVX,
    GPUSNAP_CRC32_VPCLMUL,
    GPUSNAP_CRC32_ARM,
};

/* Whether this processor and this build can take the implementation: 0 or 1, also for
 * numbers that stand for none. */
int gpusnap_crc32_supported(int implementation);

/* CRC-32 of `length` bytes at `data`, going on from `value` (0 at the start), as zlib's
 * crc32() does. The implementation must be a supported one. */
uint32_t gpusnap_crc32(int implementation, uint32_t value, const uint8_t *data, size_t length);

/* CRC-32 of two pieces put together, from the CRC-32 of each and the second one's length. */
uint32_t gpusnap_crc32_combine(uint32_t first, uint32_t second, uint64_t second_length);

/* A table of pieces: for each, `stride` bytes from one to the next, the CRC-32 and the length in
 * the file, both of 32 bits and little-endian. */
struct gpusnap_crc32_table {
    uint64_t stride;
    uint64_t crc_at;
    uint64_t length_at;
    uint64_t unit; /* each piece ends at a multiple of so many bytes, counted from its beginning */
};

/* What gpusnap_crc32_combine() does, with one piece after the other. */
uint32_t gpusnap_crc32_chain(uint32_t first, const uint8_t *pieces, size_t count,
                             const struct gpusnap_crc32_table *table);

#endif
