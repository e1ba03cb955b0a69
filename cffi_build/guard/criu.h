/* What CRIU and its plugins know of each other: the descriptor that CRIU looks up in a plugin,
 * and the functions of CRIU's that a plugin may call. Facts of CRIU 3.17 to 4.2. */
#ifndef GPUSNAP_GUARD_CRIU_H
#define GPUSNAP_GUARD_CRIU_H

#include <stdbool.h>
#include <stddef.h>

enum criu_stage { CRIU_STAGE_DUMP, CRIU_STAGE_PRE_DUMP, CRIU_STAGE_RESTORE };

/* Major, minor and sublevel of the plugin interface: 0.2.0, which every such CRIU takes. */
#define CRIU_PLUGIN_INTERFACE ((0u << 16) + (2u << 8) + 0u)

/* CRIU reads `max_hooks` pointers behind this. A plugin that declares none has no such array, and
 * so does not depend on how many hooks a release has. */
struct criu_plugin {
    const char *name;
    int (*init)(int stage);
    void (*exit)(int stage, int result);
    unsigned int version;
    unsigned int max_hooks;
};

/* Weak: a CRIU that lacks them still loads the plugin, which can then say so. */
#define CRIU_FUNCTION __attribute__((weak, visibility("default")))

/* Name a plugin that the images being written will need, from CRIU 4.1 on. */
CRIU_FUNCTION int add_inventory_plugin(const char *name);

/* Tell that a plugin which the images being read name is here. */
CRIU_FUNCTION bool check_and_remove_inventory_plugin(const char *name, size_t length);

enum criu_level { CRIU_ERROR = 1, CRIU_INFO = 3 };

CRIU_FUNCTION void print_on_level(unsigned int level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
