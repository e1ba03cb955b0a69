/* Put before the code that cffi generates for gpusnap._native. */
#include "crc32.h"
#include "inject.h"
#include "memory.h"
#include "pages.h"
#include "planes.h"
