/*
 * libdrm_amdgpu with a copy engine in software: GPU addresses are looked up in a table, and a
 * submitted list of copy packets is carried out on the spot.
 *
 * The structs are those of libdrm's amdgpu.h, as far as they are used.
 */
#define _GNU_SOURCE
#include "simkfd.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define FAMILY_AI 141
#define OP_MAP 1
#define OP_UNMAP 2
#define COPY_OPCODE 1
#define COPY_WORDS 7
#define PAGE 4096ull
#define MOST_MAPS 256

struct device {
	int descriptor;
};

enum origin { USER, IMPORTED, ALLOCATED };

struct buffer {
	void *memory;
	uint64_t size;
	enum origin origin;
};

struct import_result {
	struct buffer *buffer;
	uint64_t size;
};

struct allocation {
	uint64_t size, alignment;
	uint32_t heap;
	uint64_t flags;
};

struct gpu_info {
	uint32_t asic, revision, external_revision, family;
};

struct commands {
	uint64_t flags, address;
	uint32_t words;
};

struct submission {
	uint64_t flags;
	unsigned int ip_type, ip_instance;
	uint32_t ring;
	void *resources;
	uint32_t dependency_count;
	void *dependencies;
	uint32_t commands_count;
	struct commands *commands;
	uint64_t sequence;
	struct {
		void *buffer;
		uint64_t offset;
	} fence;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	uint64_t address, size;
	char *memory;
} maps[MOST_MAPS];
static uint64_t next_address = 1ull << 32;

int amdgpu_device_initialize(int descriptor, uint32_t *major, uint32_t *minor, struct device **device)
{
	*major = 3;
	*minor = 57;
	*device = malloc(sizeof(**device));
	(*device)->descriptor = descriptor;
	return 0;
}

int amdgpu_device_deinitialize(struct device *device)
{
	free(device);
	return 0;
}

int amdgpu_device_get_fd(struct device *device)
{
	return device->descriptor;
}

int amdgpu_query_gpu_info(struct device *device, struct gpu_info *info)
{
	(void)device;
	info->family = FAMILY_AI;
	return 0;
}

static struct buffer *make(void *memory, uint64_t size, enum origin origin)
{
	struct buffer *buffer = malloc(sizeof(*buffer));

	*buffer = (struct buffer){ memory, size, origin };
	return buffer;
}

int amdgpu_create_bo_from_user_mem(struct device *device, void *memory, uint64_t size,
				   struct buffer **buffer)
{
	(void)device;
	*buffer = make(memory, size, USER);
	return 0;
}

int amdgpu_bo_import(struct device *device, int type, uint32_t descriptor,
		     struct import_result *result)
{
	struct stat status;
	void *memory;

	(void)device;
	(void)type;
	if (fstat(descriptor, &status) < 0)
		return -errno;
	memory = mmap(NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
	if (memory == MAP_FAILED)
		return -errno;
	result->buffer = make(memory, status.st_size, IMPORTED);
	result->size = status.st_size;
	return 0;
}

int amdgpu_bo_alloc(struct device *device, struct allocation *wanted, struct buffer **buffer)
{
	(void)device;
	*buffer = make(calloc(1, wanted->size + PAGE), wanted->size, ALLOCATED);
	return 0;
}

int amdgpu_bo_free(struct buffer *buffer)
{
	if (buffer->origin == IMPORTED)
		munmap(buffer->memory, buffer->size);
	if (buffer->origin == ALLOCATED)
		free(buffer->memory);
	free(buffer);
	return 0;
}

int amdgpu_bo_cpu_map(struct buffer *buffer, void **memory)
{
	*memory = buffer->memory;
	return 0;
}

int amdgpu_bo_cpu_unmap(struct buffer *buffer)
{
	(void)buffer;
	return 0;
}

int amdgpu_va_range_alloc(struct device *device, int type, uint64_t size, uint64_t alignment,
			  uint64_t wanted, uint64_t *address, void **handle, uint64_t flags)
{
	(void)device;
	(void)type;
	(void)alignment;
	(void)wanted;
	(void)flags;
	pthread_mutex_lock(&lock);
	*address = next_address;
	next_address += (size / PAGE + 2) * PAGE;
	pthread_mutex_unlock(&lock);
	*handle = malloc(1);
	return 0;
}

int amdgpu_va_range_free(void *handle)
{
	free(handle);
	return 0;
}

static int change(uint32_t operation, uint64_t address, uint64_t size, char *memory)
{
	uint64_t wanted = operation == OP_MAP ? 0 : address;

	for (int i = 0; i < MOST_MAPS; i++) {
		if (maps[i].address != wanted)
			continue;
		maps[i].address = operation == OP_MAP ? address : 0;
		maps[i].size = size;
		maps[i].memory = memory;
		return 0;
	}
	return -ENOMEM;
}

int amdgpu_bo_va_op(struct buffer *buffer, uint64_t offset, uint64_t size, uint64_t address,
		    uint64_t flags, uint32_t operation)
{
	int failed;

	(void)offset;
	(void)flags;
	pthread_mutex_lock(&lock);
	failed = change(operation, address, size, buffer->memory);
	pthread_mutex_unlock(&lock);
	return failed;
}

static void *find(uint64_t address, uint64_t size)
{
	void *found = NULL;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < MOST_MAPS && found == NULL; i++)
		if (maps[i].address != 0 && address >= maps[i].address &&
		    address + size <= maps[i].address + maps[i].size)
			found = maps[i].memory + (address - maps[i].address);
	pthread_mutex_unlock(&lock);
	return found;
}

static int carry_out(const struct commands *commands)
{
	const uint32_t *word = find(commands->address, commands->words);

	if (word == NULL)
		return -EFAULT;
	for (uint32_t i = 0; i < commands->words;) {
		uint64_t size, from, to;
		void *source, *target;

		if ((word[i] & 0xff) != COPY_OPCODE) {
			i++;
			continue;
		}
		size = word[i + 1];
		from = word[i + 3] | (uint64_t)word[i + 4] << 32;
		to = word[i + 5] | (uint64_t)word[i + 6] << 32;
		source = find(from, size);
		target = find(to, size);
		if (source == NULL || target == NULL)
			return -EFAULT;
		memcpy(target, source, size);
		i += COPY_WORDS;
	}
	return 0;
}

int amdgpu_cs_submit(void *context, uint64_t flags, struct submission *submissions, uint32_t count)
{
	int failed = 0;

	(void)context;
	(void)flags;
	for (uint32_t i = 0; i < count && !failed; i++)
		for (uint32_t k = 0; k < submissions[i].commands_count && !failed; k++)
			failed = carry_out(&submissions[i].commands[k]);
	return failed;
}

int amdgpu_cs_query_fence_status(void *fence, uint64_t timeout, uint64_t flags, uint32_t *expired)
{
	(void)fence;
	(void)timeout;
	(void)flags;
	*expired = 1;
	return 0;
}

int amdgpu_bo_list_create(struct device *device, uint32_t count, struct buffer **buffers,
			  uint8_t *priorities, void **list)
{
	(void)device;
	(void)count;
	(void)buffers;
	(void)priorities;
	*list = malloc(1);
	return 0;
}

int amdgpu_bo_list_destroy(void *list)
{
	free(list);
	return 0;
}

int amdgpu_cs_ctx_create(struct device *device, void **context)
{
	(void)device;
	*context = malloc(1);
	return 0;
}

int amdgpu_cs_ctx_free(void *context)
{
	free(context);
	return 0;
}
