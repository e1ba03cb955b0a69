/* Device nodes by their names: what stands in for them is another character device. */
#define _GNU_SOURCE
#include "simkfd.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define KFD "/dev/kfd"
#define RENDER "/dev/dri/renderD"
#define KFD_MAJOR 511
#define DRM_MAJOR 226

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void rename_device(const char *path, struct stat *status)
{
	size_t length = strlen(path), kfd = strlen(KFD);
	const char *render = strstr(path, RENDER);

	if (!S_ISCHR(status->st_mode))
		return;
	if (length >= kfd && strcmp(path + length - kfd, KFD) == 0)
		status->st_rdev = makedev(KFD_MAJOR, 0);
	else if (render != NULL)
		status->st_rdev = makedev(DRM_MAJOR, atoi(render + strlen(RENDER)));
}

static void rename_open_device(int descriptor, struct stat *status)
{
	char link[64], path[PATH_MAX];
	ssize_t length;

	if (!S_ISCHR(status->st_mode))
		return;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
	length = readlink(link, path, sizeof(path) - 1);
	if (length > 0) {
		path[length] = '\0';
		rename_device(path, status);
	}
}

int stat(const char *path, struct stat *status)
{
	int failed = REAL(stat)(path, status);

	if (!failed)
		rename_device(path, status);
	return failed;
}

int lstat(const char *path, struct stat *status)
{
	int failed = REAL(lstat)(path, status);

	if (!failed)
		rename_device(path, status);
	return failed;
}

int fstat(int descriptor, struct stat *status)
{
	int failed = REAL(fstat)(descriptor, status);

	if (!failed)
		rename_open_device(descriptor, status);
	return failed;
}

int fstatat(int folder, const char *path, struct stat *status, int flags)
{
	int failed = REAL(fstatat)(folder, path, status, flags);

	if (!failed && path[0] != '\0')
		rename_device(path, status);
	else if (!failed)
		rename_open_device(folder, status);
	return failed;
}

/* On 64-bit machines both structs are the same */

int stat64(const char *path, struct stat64 *status)
{
	return stat(path, (struct stat *)status);
}

int lstat64(const char *path, struct stat64 *status)
{
	return lstat(path, (struct stat *)status);
}

int fstat64(int descriptor, struct stat64 *status)
{
	return fstat(descriptor, (struct stat *)status);
}

int fstatat64(int folder, const char *path, struct stat64 *status, int flags)
{
	return fstatat(folder, path, (struct stat *)status, flags);
}
