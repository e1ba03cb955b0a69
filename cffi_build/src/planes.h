/* Byte planes: first the first bytes of all numbers, then the second ones, and so on. Bytes of one
 * kind, such as exponents, then lie together, which is what entropy coding needs. */
#ifndef GPUSNAP_PLANES_H
#define GPUSNAP_PLANES_H

#include <stddef.h>
#include <stdint.h>

/* Take numbers of `width` bytes, 2 or 4, apart. `out` has room for `length` bytes and shares none
 * with `data`. Bytes behind the last whole number stay at the end, as they are. */
void gpusnap_split_planes(const uint8_t *data, size_t length, size_t width, uint8_t *out);

/* The inverse. */
void gpusnap_join_planes(const uint8_t *data, size_t length, size_t width, uint8_t *out);

#endif
