/*
 * The ioctls of KFD that CRIU's amdgpu plugin calls.
 *
 *   SIMKFD_MINOR   minor version of the interface, 17 without
 *   SIMKFD_FAIL    OPERATION:ERRNO, an operation that is refused
 *   SIMKFD_HANG    OPERATION, one that never returns
 *   SIMKFD_ACTUAL  gpu_id that the only GPU has by now, while the process knows it by another
 */
#define _GNU_SOURCE
#include "simkfd.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define PRIVATE_SIZE 256
#define PRIVATE_BYTE 0x5a
#define MOVED 0x100000

static const char *const NAMES[OPERATIONS] = { "process-info", "checkpoint", "unpause", "restore",
					       "resume" };

static int number(const char *variable, int otherwise)
{
	const char *text = getenv(variable);

	return text != NULL ? atoi(text) : otherwise;
}

static int injected(uint32_t operation)
{
	const char *fail = getenv("SIMKFD_FAIL");

	if (number("SIMKFD_HANG", -1) == (int)operation)
		for (;;)
			pause();
	if (fail == NULL || atoi(fail) != (int)operation)
		return 0;
	errno = atoi(strchr(fail, ':') + 1);
	return -1;
}

static int tell_sizes(struct kfd_criu *args)
{
	uint32_t gpus[MOST_GPUS];
	struct kfd_buffer buffers[MOST_BUFFERS];

	args->device_count = simkfd_gpus(gpus);
	args->buffer_count = simkfd_buffers(buffers);
	args->object_count = 0;
	args->private_size = PRIVATE_SIZE;
	args->pid = simkfd_process();
	return 0;
}

static int has_memory(const struct kfd_buffer *buffer)
{
	return (buffer->flags & (KFD_VRAM | KFD_GTT)) != 0;
}

static uint32_t open_memory(const struct kfd_buffer *buffer, int flags)
{
	if (!has_memory(buffer))
		return KFD_NO_DESCRIPTOR;
	return simkfd_memory(buffer->address, flags);
}

static int save(struct kfd_criu *args)
{
	struct kfd_device *devices = (void *)(uintptr_t)args->devices;
	struct kfd_buffer *buffers = (void *)(uintptr_t)args->buffers;
	uint32_t gpus[MOST_GPUS];
	size_t count = simkfd_gpus(gpus);

	for (size_t i = 0; i < count; i++)
		devices[i] = (struct kfd_device){ .user_id = gpus[i],
						  .actual_id = number("SIMKFD_ACTUAL", gpus[i]),
						  .render_descriptor = KFD_NO_DESCRIPTOR };
	count = simkfd_buffers(buffers);
	for (size_t i = 0; i < count; i++)
		buffers[i].descriptor = open_memory(&buffers[i], O_RDWR);
	memset((void *)(uintptr_t)args->private_data, PRIVATE_BYTE, args->private_size);
	return 0;
}

static int whole(const struct kfd_criu *args)
{
	const unsigned char *data = (void *)(uintptr_t)args->private_data;

	for (size_t i = 0; i < args->private_size; i++)
		if (data[i] != PRIVATE_BYTE)
			return 0;
	return args->private_size == PRIVATE_SIZE;
}

static int load(struct kfd_criu *args)
{
	struct kfd_buffer *buffers = (void *)(uintptr_t)args->buffers;

	if (!whole(args)) {
		errno = EINVAL;
		return -1;
	}
	for (size_t i = 0; i < args->buffer_count; i++) {
		buffers[i].new_offset = buffers[i].offset + MOVED;
		buffers[i].descriptor = open_memory(&buffers[i], O_RDWR | O_CREAT | O_TRUNC);
		simkfd_keep(&buffers[i]);
		if (has_memory(&buffers[i]) && ftruncate(buffers[i].descriptor, buffers[i].size) < 0)
			return -1;
	}
	return 0;
}

static int operate(struct kfd_criu *args)
{
	if (args->operation >= OPERATIONS) {
		errno = EINVAL;
		return -1;
	}
	simkfd_note(NAMES[args->operation]);
	if (injected(args->operation))
		return -1;
	switch (args->operation) {
	case PROCESS_INFO:
		return tell_sizes(args);
	case CHECKPOINT:
		return save(args);
	case RESTORE:
		return load(args);
	default:
		return 0;
	}
}

static int tell_version(struct kfd_version *version)
{
	*version = (struct kfd_version){ .major = 1, .minor = number("SIMKFD_MINOR", 17) };
	return 0;
}

int ioctl(int descriptor, unsigned long request, ...)
{
	int (*real)(int, unsigned long, ...) = (__typeof__(real))dlsym(RTLD_NEXT, "ioctl");
	va_list rest;
	void *argument;

	va_start(rest, request);
	argument = va_arg(rest, void *);
	va_end(rest);
	if (_IOC_TYPE(request) != KFD_TYPE)
		return real(descriptor, request, argument);
	if (_IOC_NR(request) == KFD_CRIU && _IOC_SIZE(request) == sizeof(struct kfd_criu))
		return operate(argument);
	if (_IOC_NR(request) == KFD_GET_VERSION && _IOC_SIZE(request) == sizeof(struct kfd_version))
		return tell_version(argument);
	return real(descriptor, request, argument);
}
