/* What gpusnap.native calls in gpusnap._native; the headers in src/ document each function. */

enum gpusnap_crc32_implementation {
    GPUSNAP_CRC32_PORTABLE,
    GPUSNAP_CRC32_PCLMUL,
    GPUSNAP_CRC32_VPCLMUL_AVX,
    GPUSNAP_CRC32_VPCLMUL,
    GPUSNAP_CRC32_ARM,
    ...
};

int gpusnap_crc32_supported(int implementation);
uint32_t gpusnap_crc32(int implementation, uint32_t value, const uint8_t *data, size_t length);
uint32_t gpusnap_crc32_combine(uint32_t first, uint32_t second, uint64_t second_length);

struct gpusnap_crc32_table {
    uint64_t stride;
    uint64_t crc_at;
    uint64_t length_at;
    uint64_t unit;
};

uint32_t gpusnap_crc32_chain(uint32_t first, const uint8_t *pieces, size_t count,
                             const struct gpusnap_crc32_table *table);

size_t gpusnap_read_process(int implementation, int32_t pid, uint64_t address, uint8_t *data,
                            size_t length, uint32_t *crc);
size_t gpusnap_write_process(int32_t pid, uint64_t address, const uint8_t *data, size_t length);

struct gpusnap_run {
    uint64_t offset;
    uint64_t length;
};

size_t gpusnap_nonzero_pages(const uint8_t *data, size_t length, size_t page,
                             struct gpusnap_run *runs, size_t room);
size_t gpusnap_held_pages(const uint64_t *words, size_t count, size_t page,
                          struct gpusnap_run *runs, size_t room);

struct gpusnap_piece {
    uint64_t address;
    uint64_t length;
    int32_t pid;
    uint32_t crc;
    int32_t whole;
};

size_t gpusnap_read_pieces(int implementation, struct gpusnap_piece *pieces, size_t count,
                           size_t page, uint8_t *data, size_t room);

struct gpusnap_stored {
    uint64_t offset;
    uint32_t length;
    uint32_t crc;
};

struct gpusnap_straight {
    uint64_t base;
    uint64_t step;
    uint64_t position;
    int32_t pid;
    int32_t file;
    int32_t error;
    uint64_t done;
};

size_t gpusnap_copy_straight(int implementation, struct gpusnap_straight *copy,
                             const struct gpusnap_run *runs, size_t count, size_t page,
                             uint8_t *data, size_t room, struct gpusnap_stored *stored,
                             size_t most);

struct gpusnap_extent {
    uint64_t position;
    uint64_t length;
    uint64_t address;
    int32_t pid;
    uint32_t crc;
};

size_t gpusnap_put_extents(int implementation, int32_t descriptor,
                           const struct gpusnap_extent *extents, size_t count, size_t page,
                           uint8_t *buffer, size_t room);

struct gpusnap_call {
    int64_t number;
    uint64_t arguments[3];
    int64_t result;
};

int64_t gpusnap_inject(int32_t thread, uint64_t syscall_at, struct gpusnap_call *calls,
                       size_t count, int32_t timeout_ms);
int gpusnap_same_file(int32_t first, int32_t second, int32_t descriptor);
int gpusnap_share(int32_t first, int32_t second);

void gpusnap_split_planes(const uint8_t *data, size_t length, size_t width, uint8_t *out);
void gpusnap_join_planes(const uint8_t *data, size_t length, size_t width, uint8_t *out);
