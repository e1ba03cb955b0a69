/* Put before the code that cffi generates for gpusnap._native. */
#include "crc32.h"
#include "extents.h"
#include "inject.h"
#include "memory.h"
#include "pages.h"
#include "pieces.h"
#include "planes.h"
#include "straight.h"
