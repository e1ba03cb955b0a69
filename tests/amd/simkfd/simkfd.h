/*
 * A simulated KFD for CRIU and its amdgpu plugin, to be preloaded into them.
 *
 * What it knows lies in the folder that the variable SIMKFD names:
 *   gpus      one gpu_id a line
 *   buffers   one buffer a line: gpu_id, address, size, flags, offset (all but the first in
 *             hexadecimal); its memory is the file memory-ADDRESS
 *   process   the process that holds them
 *   events    what the driver was asked for, one word a line
 * Variables make it fail: see kfd.c.
 */
#ifndef SIMKFD_H
#define SIMKFD_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>

/* The kernel's include/uapi/linux/kfd_ioctl.h, as far as it is answered here */

#define KFD_TYPE 'K'
#define KFD_GET_VERSION 0x01
#define KFD_CRIU 0x22
#define KFD_NO_DESCRIPTOR 0xffffffffu
#define KFD_VRAM 1u
#define KFD_GTT 2u

enum { PROCESS_INFO, CHECKPOINT, UNPAUSE, RESTORE, RESUME, OPERATIONS };

struct kfd_version {
	uint32_t major, minor;
};

struct kfd_criu {
	uint64_t devices, buffers, private_data, private_size;
	uint32_t device_count, buffer_count, object_count, pid, operation;
};

struct kfd_device {
	uint32_t user_id, actual_id, render_descriptor, pad;
};

struct kfd_buffer {
	uint64_t address, size, offset, new_offset;
	uint32_t gpu, flags, descriptor, pad;
};

/* state.c */

#define MOST_GPUS 8
#define MOST_BUFFERS 16

FILE *simkfd_open(const char *name, const char *mode);
void simkfd_note(const char *event);
uint32_t simkfd_process(void);
size_t simkfd_gpus(uint32_t *gpus);
size_t simkfd_buffers(struct kfd_buffer *buffers);
void simkfd_keep(const struct kfd_buffer *buffer);
int simkfd_memory(uint64_t address, int flags);

#endif
