/* SPDX-License-Identifier: Apache-2.0 */
/* Folders: make with parents, remove with contents. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/io_file.h"
#include "io/io_file_priv.h"

/* Stores are two levels deep; anything far deeper is not theirs. Bounds recursion and open descriptors. */
#define MAX_DEPTH 64

static int make_one(const char *dir, struct io_error *err)
{
	struct stat st;

	if (mkdir(dir, 0777) == 0)
		return 0;
	if (errno == EEXIST || errno == EROFS || errno == EACCES) {
		int e = errno;

		if (stat(dir, &st) == 0 && S_ISDIR(st.st_mode))
			return 0;
		errno = e == EEXIST ? ENOTDIR : e;
	}
	return io_errorf(err, errno, "%s: cannot make the folder: %s", dir, strerror(errno));
}

int io_mkdirs(const char *dir, struct io_error *err)
{
	char *path, *p;
	int rc = 0;

	if (dir[0] == '\0')
		return io_errorf(err, EINVAL, "cannot make a folder with an empty name");
	/* mostly the parents are there; this is one call then, and an error names the folder that was asked for */
	if (mkdir(dir, 0777) == 0)
		return 0;
	if (errno != ENOENT)
		return make_one(dir, err);
	path = strdup(dir);
	if (!path)
		return io_errorf(err, ENOMEM, "no memory for a file name");
	for (p = path + 1; rc == 0 && *p; p++) {
		if (*p != '/' || p[-1] == '/')
			continue;
		*p = '\0';
		rc = make_one(path, err);
		*p = '/';
	}
	if (rc == 0)
		rc = make_one(path, err);
	free(path);
	return rc;
}

static int remove_entry(int parent, const char *shown, const char *name, int depth, struct io_error *err);

/* Removes all entries of the folder open as fd; takes the descriptor. */
static int empty_dir(int fd, const char *shown, int depth, struct io_error *err)
{
	DIR *d = fdopendir(fd);
	struct dirent *e;
	int rc = 0;

	if (!d) {
		io_errorf(err, errno, "%s: cannot list the folder: %s", shown, strerror(errno));
		close(fd);
		return -1;
	}
	for (;;) {
		errno = 0;
		e = readdir(d);
		if (!e) {
			if (errno != 0)
				rc = io_errorf(err, errno, "%s: cannot list the folder: %s", shown,
					       strerror(errno));
			break;
		}
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		rc = remove_entry(dirfd(d), shown, e->d_name, depth, err);
		if (rc != 0)
			break;
	}
	closedir(d);
	return rc;
}

static int remove_entry(int parent, const char *shown, const char *name, int depth, struct io_error *err)
{
	int fd;

	/* another process removing the same leftovers is fine: ENOENT counts as done */
	if (unlinkat(parent, name, 0) == 0 || errno == ENOENT)
		return 0;
	if (errno != EISDIR && errno != EPERM)
		return io_errorf(err, errno, "%s/%s: cannot remove: %s", shown, name, strerror(errno));
	if (depth >= MAX_DEPTH)
		return io_errorf(err, ELOOP, "%s/%s: folders nested deeper than %d are not removed", shown, name,
				 MAX_DEPTH);
	fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0) {
		if (errno == ENOENT)
			return 0;
		return io_errorf(err, errno, "%s/%s: cannot remove: %s", shown, name, strerror(errno));
	}
	if (empty_dir(fd, shown, depth + 1, err) != 0)
		return -1;
	if (unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
		return 0;
	return io_errorf(err, errno, "%s/%s: cannot remove the folder: %s", shown, name, strerror(errno));
}

int io_remove_tree(const char *dir, struct io_error *err)
{
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		return io_errorf(err, errno, "%s: cannot open the folder to remove it: %s", dir, strerror(errno));
	if (empty_dir(fd, dir, 0, err) != 0)
		return -1;
	if (rmdir(dir) != 0 && errno != ENOENT)
		return io_errorf(err, errno, "%s: cannot remove the folder: %s", dir, strerror(errno));
	return 0;
}
