/* The functions that the running program takes from its libraries. */
#ifndef GPUSNAP_GUARD_IMPORTS_H
#define GPUSNAP_GUARD_IMPORTS_H

#include <stdint.h>

/* Have the program itself, none of its libraries, call `replacement` wherever it calls the function
 * `name` of a library. Gives how many places that are: 0 if it does not use the function. */
int imports_replace(const char *name, uintptr_t replacement);

#endif
