/* The ways to compute CRC-32, and what they share. Not for use outside src/crc32*.c.
 *
 * A `state` is the shift register itself: the CRC without zlib's inversion before and after.
 * States add up: the state after data is that of the data from 0, exclusive-or that of as many
 * zero bytes from the starting state. Every fast way below rests on this. */
#ifndef GPUSNAP_CRC32_WAYS_H
#define GPUSNAP_CRC32_WAYS_H

#include <stddef.h>
#include <stdint.h>

uint32_t crc32_portable(uint32_t state, const uint8_t *data, size_t length);

#if defined(__x86_64__)
#define CRC32_HAVE_X86 1
uint32_t crc32_pclmul(uint32_t state, const uint8_t *data, size_t length);
uint32_t crc32_vpclmul_avx(uint32_t state, const uint8_t *data, size_t length);
uint32_t crc32_vpclmul(uint32_t state, const uint8_t *data, size_t length);
#endif

#if defined(__aarch64__) && defined(__AARCH64EL__)
#define CRC32_HAVE_ARM 1
uint32_t crc32_arm(uint32_t state, const uint8_t *data, size_t length);
#endif

/* The state after `length` zero bytes. */
uint32_t crc32_skip(uint32_t state, uint64_t length);

#endif
