/* Stands in for compiled kernels: found by name, if the image declares such an entry. */
#include "simcuda.h"

#include <stdio.h>
#include <string.h>

enum { WORDS_AT_ONCE = 512 };

static void mix(void **parameters) {
    uint64_t address, seed, step, words[WORDS_AT_ONCE];
    uint32_t count;
    memcpy(&address, parameters[0], sizeof address);
    memcpy(&seed, parameters[1], sizeof seed);
    memcpy(&step, parameters[2], sizeof step);
    memcpy(&count, parameters[3], sizeof count);
    if (count > WORDS_AT_ONCE || memory_copy_out(address, words, count * sizeof *words)) return;
    for (uint32_t i = 0; i < count; i++)
        words[i] = (words[i] ^ (seed + i)) * 6364136223846793005u + step;
    memory_copy_in(address, words, count * sizeof *words);
}

static const struct {
    const char *name;
    kernel_function function;
} KERNELS[] = {{"gpusnap_mix", mix}};

kernel_function find_kernel(const char *image, const char *name) {
    char entry[128];
    snprintf(entry, sizeof entry, ".entry %s(", name);
    for (size_t i = 0; i < sizeof KERNELS / sizeof *KERNELS; i++)
        if (strcmp(KERNELS[i].name, name) == 0 && strstr(image, entry)) return KERNELS[i].function;
    return NULL;
}
