/* What the simulated driver knows: the files of its folder. */
#define _GNU_SOURCE
#include "simkfd.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>

static void path_of(char *path, const char *name)
{
	snprintf(path, PATH_MAX, "%s/%s", getenv("SIMKFD"), name);
}

FILE *simkfd_open(const char *name, const char *mode)
{
	char path[PATH_MAX];

	path_of(path, name);
	return fopen(path, mode);
}

void simkfd_note(const char *event)
{
	FILE *file = simkfd_open("events", "ae");

	if (file != NULL) {
		fprintf(file, "%s\n", event);
		fclose(file);
	}
}

static size_t numbers(const char *name, uint32_t *values, size_t most)
{
	FILE *file = simkfd_open(name, "re");
	size_t count = 0;

	while (file != NULL && count < most && fscanf(file, "%" SCNu32, &values[count]) == 1)
		count++;
	if (file != NULL)
		fclose(file);
	return count;
}

uint32_t simkfd_process(void)
{
	uint32_t pid = 0;

	numbers("process", &pid, 1);
	return pid;
}

size_t simkfd_gpus(uint32_t *gpus)
{
	return numbers("gpus", gpus, MOST_GPUS);
}

size_t simkfd_buffers(struct kfd_buffer *buffers)
{
	FILE *file = simkfd_open("buffers", "re");
	struct kfd_buffer each = { 0 };
	size_t count = 0;

	while (file != NULL && count < MOST_BUFFERS &&
	       fscanf(file, "%" SCNu32 " %" SCNx64 " %" SCNx64 " %" SCNx32 " %" SCNx64, &each.gpu,
		      &each.address, &each.size, &each.flags, &each.offset) == 5)
		buffers[count++] = each;
	if (file != NULL)
		fclose(file);
	return count;
}

void simkfd_keep(const struct kfd_buffer *buffer)
{
	FILE *file = simkfd_open("buffers", "ae");

	if (file == NULL)
		return;
	fprintf(file, "%" PRIu32 " %" PRIx64 " %" PRIx64 " %" PRIx32 " %" PRIx64 "\n", buffer->gpu,
		buffer->address, buffer->size, buffer->flags, buffer->offset);
	fclose(file);
}

int simkfd_memory(uint64_t address, int flags)
{
	char name[64], path[PATH_MAX];

	snprintf(name, sizeof(name), "memory-%" PRIx64, address);
	path_of(path, name);
	return open(path, flags | O_CLOEXEC, 0600);
}
