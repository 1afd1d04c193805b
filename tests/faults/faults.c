/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A shim for LD_PRELOAD: at the N-th change of a file below FAULT_DIR the process dies, or the disk is full from then on.
 *
 *     FAULT_DIR=/abs/run FAULT=crash:7   LD_PRELOAD=faults.so trainer     dies by SIGKILL before the 7th change
 *     FAULT_DIR=/abs/run FAULT=enospc:7  LD_PRELOAD=faults.so trainer     the 7th change and all later ones fail with ENOSPC
 *     FAULT_COUNT=/abs/file                                               the number of changes is left there at exit
 *
 * Changes are open with O_CREAT, write, pwrite, ftruncate, fsync, rename, renameat2, mkdir, unlink, unlinkat and rmdir. With
 * enospc, what frees space or changes nothing (unlink, rmdir, fsync of a folder, ftruncate) still works.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum kind { NEEDS_SPACE, FREES_SPACE };

static atomic_int changes;

static int below(const char *path)
{
	const char *dir = getenv("FAULT_DIR");
	size_t n = dir ? strlen(dir) : 0;

	return n && !strncmp(path, dir, n) && (path[n] == '/' || !path[n]);
}

static int path_below(int dirfd, const char *path)
{
	char full[3 * PATH_MAX], base[PATH_MAX], link[64];
	ssize_t n;

	if (*path == '/')
		return below(path);
	if (dirfd == AT_FDCWD) {
		if (!getcwd(base, sizeof base))
			return 0;
	} else {
		snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd);
		n = readlink(link, base, sizeof base - 1);
		if (n < 0)
			return 0;
		base[n] = 0;
	}
	snprintf(full, sizeof full, "%s/%s", base, path);
	return below(full);
}

static int fd_below(int fd)
{
	char link[64], path[PATH_MAX];
	ssize_t n;

	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof path - 1);
	if (n < 0)
		return 0;
	path[n] = 0;
	return below(path);
}

/* Counts a change; 0 to go on, -1 with errno to fail. */
static int change(enum kind kind)
{
	const char *fault = getenv("FAULT");
	int n = atomic_fetch_add(&changes, 1) + 1;

	if (!fault)
		return 0;
	if (!strncmp(fault, "crash:", 6) && n == atoi(fault + 6))
		kill(getpid(), SIGKILL);
	if (!strncmp(fault, "enospc:", 7) && n >= atoi(fault + 7) && kind == NEEDS_SPACE) {
		errno = ENOSPC;
		return -1;
	}
	return 0;
}

static void *next(const char *name)
{
	void *p = dlsym(RTLD_NEXT, name);

	if (!p)
		abort();
	return p;
}
#define NEXT(type, name) ((type)next(name))

__attribute__((destructor)) static void leave_count(void)
{
	const char *path = getenv("FAULT_COUNT");
	FILE *f = path ? fopen(path, "w") : NULL;

	if (f) {
		fprintf(f, "%d\n", atomic_load(&changes));
		fclose(f);
	}
}

static int open_common(const char *name, const char *path, int flags, mode_t mode)
{
	if ((flags & O_CREAT) && path_below(AT_FDCWD, path) && change(NEEDS_SPACE))
		return -1;
	return NEXT(int (*)(const char *, int, ...), name)(path, flags, mode);
}
static int openat_common(const char *name, int dirfd, const char *path, int flags, mode_t mode)
{
	if ((flags & O_CREAT) && path_below(dirfd, path) && change(NEEDS_SPACE))
		return -1;
	return NEXT(int (*)(int, const char *, int, ...), name)(dirfd, path, flags, mode);
}
#define MODE(flags, mode)                          \
	mode_t mode = 0;                           \
	if ((flags) & (O_CREAT | O_TMPFILE)) {     \
		va_list ap;                        \
		va_start(ap, flags);               \
		mode = va_arg(ap, mode_t);         \
		va_end(ap);                        \
	}
int open(const char *path, int flags, ...)
{
	MODE(flags, mode)
	return open_common("open", path, flags, mode);
}
int open64(const char *path, int flags, ...)
{
	MODE(flags, mode)
	return open_common("open64", path, flags, mode);
}
int openat(int dirfd, const char *path, int flags, ...)
{
	MODE(flags, mode)
	return openat_common("openat", dirfd, path, flags, mode);
}
int openat64(int dirfd, const char *path, int flags, ...)
{
	MODE(flags, mode)
	return openat_common("openat64", dirfd, path, flags, mode);
}

ssize_t write(int fd, const void *p, size_t n)
{
	if (fd_below(fd) && change(NEEDS_SPACE))
		return -1;
	return NEXT(ssize_t (*)(int, const void *, size_t), "write")(fd, p, n);
}
ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
	if (fd_below(fd) && change(NEEDS_SPACE))
		return -1;
	return NEXT(ssize_t (*)(int, const void *, size_t, off_t), "pwrite")(fd, p, n, at);
}
ssize_t pwrite64(int fd, const void *p, size_t n, off64_t at)
{
	if (fd_below(fd) && change(NEEDS_SPACE))
		return -1;
	return NEXT(ssize_t (*)(int, const void *, size_t, off64_t), "pwrite64")(fd, p, n, at);
}
int ftruncate(int fd, off_t n)
{
	if (fd_below(fd) && change(FREES_SPACE))
		return -1;
	return NEXT(int (*)(int, off_t), "ftruncate")(fd, n);
}
int fsync(int fd)
{
	struct stat st;

	if (fd_below(fd) && change(fstat(fd, &st) || S_ISDIR(st.st_mode) ? FREES_SPACE : NEEDS_SPACE))
		return -1;
	return NEXT(int (*)(int), "fsync")(fd);
}
int rename(const char *from, const char *to)
{
	if (path_below(AT_FDCWD, to) && change(FREES_SPACE))
		return -1;
	return NEXT(int (*)(const char *, const char *), "rename")(from, to);
}
int renameat2(int d1, const char *from, int d2, const char *to, unsigned flags)
{
	if (path_below(d2, to) && change(FREES_SPACE))
		return -1;
	return NEXT(int (*)(int, const char *, int, const char *, unsigned), "renameat2")(d1, from, d2, to, flags);
}
int mkdir(const char *path, mode_t mode)
{
	if (path_below(AT_FDCWD, path) && change(NEEDS_SPACE))
		return -1;
	return NEXT(int (*)(const char *, mode_t), "mkdir")(path, mode);
}
int unlink(const char *path)
{
	if (path_below(AT_FDCWD, path) && change(FREES_SPACE))
		return -1;
	return NEXT(int (*)(const char *), "unlink")(path);
}
int unlinkat(int dirfd, const char *path, int flags)
{
	if (path_below(dirfd, path) && change(FREES_SPACE))
		return -1;
	return NEXT(int (*)(int, const char *, int), "unlinkat")(dirfd, path, flags);
}
int rmdir(const char *path)
{
	if (path_below(AT_FDCWD, path) && change(FREES_SPACE))
		return -1;
	return NEXT(int (*)(const char *), "rmdir")(path);
}
