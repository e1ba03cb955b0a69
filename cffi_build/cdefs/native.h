/* What gpusnap.native calls in gpusnap._native; src/crc32.h documents each function. */

enum gpusnap_crc32_implementation {
    GPUSNAP_CRC32_PORTABLE,
    GPUSNAP_CRC32_PCLMUL,
    GPUSNAP_CRC32_VPCLMUL,
    GPUSNAP_CRC32_ARM,
    ...
};

int gpusnap_crc32_supported(int implementation);
uint32_t gpusnap_crc32(int implementation, uint32_t value, const uint8_t *data, size_t length);
uint32_t gpusnap_crc32_combine(uint32_t first, uint32_t second, uint64_t second_length);
