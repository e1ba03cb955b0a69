/* Holds state in the simulated KFD, as a program on a GPU would, and counts: program NODE LOG */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ADDRESS ((void *)0x7e0000000000)
#define SIZE 0x10000
#define OFFSET 0x10000

int main(int count, char **arguments)
{
	int kfd = open("/dev/kfd", O_RDWR);
	int render = count > 2 ? open(arguments[1], O_RDWR) : -1;
	int log = count > 2 ? open(arguments[2], O_WRONLY | O_CREAT | O_TRUNC, 0600) : -1;
	int flags = MAP_PRIVATE | MAP_FIXED_NOREPLACE;

	if (kfd < 0 || render < 0 || log < 0) {
		perror("program");
		return 1;
	}
	/* Without a mapping of a device CRIU does not name its plugin in the inventory */
	if (count == 3 && mmap(ADDRESS, SIZE, PROT_READ | PROT_WRITE, flags, render, OFFSET) == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	for (unsigned int step = 0;; step++) {
		char line[16];

		snprintf(line, sizeof(line), "%10u\n", step);
		if (pwrite(log, line, strlen(line), 0) < 0)
			return 1;
		usleep(10000);
	}
}
