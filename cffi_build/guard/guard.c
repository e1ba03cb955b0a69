/* A plugin for CRIU that keeps ranges of the target's memory, which gpusnap saves itself, out of a
 * dump, and names itself in the images, so that CRIU alone does not restore them without that
 * memory. It does all in its init and declares no hook: which ranges, GPUSNAP_GUARD_RANGES says;
 * without that variable it stays away.
 *
 * The one state is the list of ranges, for CRIU gives its functions none. If anything is amiss, init
 * fails and CRIU with it, before it has touched the target. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "criu.h"
#include "imports.h"
#include "pagemap.h"
#include "ranges.h"

#define NAME "gpusnap_guard"
#define VARIABLE "GPUSNAP_GUARD_RANGES"

static struct ranges hidden;

/* What CRIU calls instead of ioctl() once ranges are hidden. The calls made here are the library's. */
static int guarded_ioctl(int file, unsigned long request, ...)
{
    va_list arguments;
    va_start(arguments, request);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    if (hidden.count > 0 && request == PAGEMAP_SCAN_REQUEST && pagemap_asks_for_pages(argument)) {
        pid_t pid = pagemap_pid(file);
        if (pid > 0)
            return pagemap_scan(&hidden, pid, file, argument);
    }
    return ioctl(file, request, argument);
}

/* The same for pread(). */
static ssize_t guarded_pread(int file, void *buffer, size_t length, off_t offset)
{
    ssize_t got = pread(file, buffer, length, offset);
    if (got > 0 && hidden.count > 0) {
        pid_t pid = pagemap_pid(file);
        if (pid > 0)
            pagemap_blank(&hidden, pid, buffer, (size_t)got, (uint64_t)offset,
                          (uint64_t)sysconf(_SC_PAGESIZE));
    }
    return got;
}

static int fail(const char *subject, const char *reason)
{
    if (print_on_level != NULL)
        print_on_level(CRIU_ERROR, "Error (" NAME "): %s%s\n", subject, reason);
    return -1;
}

static int replace_calls(void)
{
    int reading = imports_replace("pread64", (uintptr_t)guarded_pread)
        + imports_replace("pread", (uintptr_t)guarded_pread);
    if (reading == 0 || imports_replace("ioctl", (uintptr_t)guarded_ioctl) == 0)
        return fail("", "this CRIU looks at memory in a way that is not known");
    return 0;
}

static int init_dump(const char *path)
{
    const char *wrong = ranges_read(&hidden, path, (uint64_t)sysconf(_SC_PAGESIZE));
    if (wrong != NULL)
        return fail("the list of ranges cannot be used: ", wrong);
    if (add_inventory_plugin == NULL)
        return fail("", "this CRIU cannot name a plugin in its images");
    if (add_inventory_plugin(NAME) != 0)
        return fail("", "CRIU did not take the plugin's name");
    if (replace_calls() != 0)
        return -1;
    if (print_on_level != NULL)
        print_on_level(CRIU_INFO, NAME ": %zu ranges are kept out of the dump\n", hidden.count);
    return 0;
}

static int guard_init(int stage)
{
    const char *path = getenv(VARIABLE);
    if (stage == CRIU_STAGE_RESTORE && check_and_remove_inventory_plugin != NULL)
        check_and_remove_inventory_plugin(NAME, strlen(NAME));
    if (path == NULL || stage == CRIU_STAGE_RESTORE)
        return 0;
    if (stage != CRIU_STAGE_DUMP)
        return fail("", "it hides nothing from a pre-dump");
    if (init_dump(path) == 0)
        return 0;
    ranges_free(&hidden);
    return -1;
}

/* CRIU may go on calling the replacements: the plugin is linked so that it stays in memory, and
 * without ranges they do what the originals do. */
static void guard_exit(int stage, int result)
{
    (void)stage;
    (void)result;
    ranges_free(&hidden);
}

__attribute__((visibility("default"))) const struct criu_plugin CR_PLUGIN_DESC = {
    .name = NAME,
    .init = guard_init,
    .exit = guard_exit,
    .version = CRIU_PLUGIN_INTERFACE,
    .max_hooks = 0,
};
