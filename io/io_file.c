/* SPDX-License-Identifier: Apache-2.0 */
#include "io/io_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "io/io_file_priv.h"

/* One kernel call moves at most this much: Linux stops at 2 GiB - 4 KiB anyway, and a bounded call stays
 * interruptible. */
#define MAX_IO ((size_t)1 << 30)

int io_pread_full(int fd, const char *path, void *buf, size_t n, int64_t off, struct io_error *err)
{
	char *p = buf;

	if (off < 0 || n > (uint64_t)(INT64_MAX - off))
		return io_errorf(err, EINVAL, "%s: cannot read %zu bytes at offset %lld: not a file position",
				 path, n, (long long)off);
	while (n > 0) {
		ssize_t k = pread(fd, p, n < MAX_IO ? n : MAX_IO, off);

		if (k < 0) {
			if (errno == EINTR)
				continue;
			return io_errorf(err, errno, "%s: reading %zu bytes at offset %lld: %s", path, n,
					 (long long)off, strerror(errno));
		}
		if (k == 0)
			return io_errorf(err, EBADMSG,
					 "%s: ends at or before offset %lld, %zu more bytes were expected "
					 "(truncated file)",
					 path, (long long)off, n);
		p += k;
		n -= (size_t)k;
		off += k;
	}
	return 0;
}

int io_pwrite_full(int fd, const char *path, const void *buf, size_t n, int64_t off, struct io_error *err)
{
	const char *p = buf;

	if (off < 0 || n > (uint64_t)(INT64_MAX - off))
		return io_errorf(err, EINVAL, "%s: cannot write %zu bytes at offset %lld: not a file position",
				 path, n, (long long)off);
	while (n > 0) {
		ssize_t k = pwrite(fd, p, n < MAX_IO ? n : MAX_IO, off);

		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0) {
			int e = k < 0 ? errno : EIO;

			return io_errorf(err, e, "%s: writing %zu bytes at offset %lld: %s", path, n,
					 (long long)off, strerror(e));
		}
		p += k;
		n -= (size_t)k;
		off += k;
	}
	return 0;
}

int io__open_regular(const char *path, int64_t *size, struct io_error *err)
{
	struct stat st;
	int fd = -1, tries;

	for (tries = 0; tries < 5; tries++) {
		fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
		if (fd >= 0 || (errno != EINTR && errno != ESTALE))
			break;
	}
	if (fd < 0)
		return io_errorf(err, errno, "%s: cannot open: %s", path, strerror(errno));
	if (fstat(fd, &st) != 0) {
		io_errorf(err, errno, "%s: cannot stat: %s", path, strerror(errno));
		close(fd);
		return -1;
	}
	if (!S_ISREG(st.st_mode)) {
		io_errorf(err, EINVAL, "%s: is not a regular file", path);
		close(fd);
		return -1;
	}
	*size = (int64_t)st.st_size;
	return fd;
}

int io__create(const char *path, struct io_error *err)
{
	int fd;

	do {
		fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
	} while (fd < 0 && errno == EINTR);
	if (fd < 0)
		return io_errorf(err, errno, "%s: cannot create: %s", path, strerror(errno));
	return fd;
}

int io__sync_close(int fd, const char *path, struct io_error *err)
{
	int rc = 0;

	while (fsync(fd) != 0) {
		if (errno == EINTR)
			continue;
		rc = io_errorf(err, errno, "%s: fsync: %s", path, strerror(errno));
		break;
	}
	/* Linux frees the descriptor even when close is interrupted; the data were synced already. */
	if (close(fd) != 0 && errno != EINTR && rc == 0)
		rc = io_errorf(err, errno, "%s: close: %s", path, strerror(errno));
	return rc;
}

int io_read_file(const char *path, size_t max, char **data, size_t *len, struct io_error *err)
{
	int64_t size = 0;
	char *buf = NULL;
	int fd;

	*data = NULL;
	*len = 0;
	fd = io__open_regular(path, &size, err);
	if (fd < 0)
		return -1;
	if (size < 0 || (uint64_t)size > max || (uint64_t)size >= SIZE_MAX) {
		io_errorf(err, EFBIG, "%s: %lld bytes; at most %zu are expected of such a file", path,
			  (long long)size, max);
		goto fail;
	}
	buf = malloc((size_t)size + 1);
	if (!buf) {
		io_errorf(err, ENOMEM, "%s: no memory for its %lld bytes", path, (long long)size);
		goto fail;
	}
	if (io_pread_full(fd, path, buf, (size_t)size, 0, err) != 0)
		goto fail;
	buf[size] = '\0';
	close(fd);
	*data = buf;
	*len = (size_t)size;
	return 0;
fail:
	free(buf);
	close(fd);
	return -1;
}

void io__random_name(char *out, size_t n)
{
	static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyz";
	unsigned char r[64];
	size_t i, have = n < sizeof(r) ? n : sizeof(r);

	if (getrandom(r, have, GRND_NONBLOCK) != (ssize_t)have) {
		/* early boot only; names need to differ, not to be secret, and creation is O_EXCL */
		struct timespec ts;
		uint64_t s;

		clock_gettime(CLOCK_REALTIME, &ts);
		s = (uint64_t)ts.tv_nsec ^ ((uint64_t)ts.tv_sec << 30) ^ ((uint64_t)getpid() << 20) ^
		    (uint64_t)(uintptr_t)out;
		for (i = 0; i < have; i++) {
			s = s * 6364136223846793005u + 1442695040888963407u;
			r[i] = (unsigned char)(s >> 33);
		}
	}
	for (i = 0; i < n; i++)
		out[i] = digits[r[i % have] % 36];
	out[n] = '\0';
}

char *io__strf(struct io_error *err, const char *fmt, ...)
{
	va_list ap;
	char *s = NULL;

	va_start(ap, fmt);
	if (vasprintf(&s, fmt, ap) < 0) {
		s = NULL;
		io_errorf(err, ENOMEM, "no memory for a file name");
	}
	va_end(ap);
	return s;
}

char *io__dirname(const char *path, struct io_error *err)
{
	const char *slash = strrchr(path, '/');

	if (!slash)
		return io__strf(err, ".");
	if (slash == path)
		return io__strf(err, "/");
	return io__strf(err, "%.*s", (int)(slash - path), path);
}

int io_fsync_dir(const char *dir, struct io_error *err)
{
	int rc = 0, fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return io_errorf(err, errno, "%s: cannot open the folder to sync it: %s", dir, strerror(errno));
	while (fsync(fd) != 0) {
		if (errno == EINTR)
			continue;
		/* Some network file systems have no fsync for folders and say so; there is nothing better to do
		 * there. */
		if (errno != EINVAL && errno != ENOTSUP)
			rc = io_errorf(err, errno, "%s: fsync of the folder: %s", dir, strerror(errno));
		break;
	}
	close(fd);
	return rc;
}

int io__rename_sync(const char *from, const char *to, struct io_error *err)
{
	char *dir;
	int rc;

	if (rename(from, to) != 0)
		return io_errorf(err, errno, "%s: cannot rename to %s: %s", from, to, strerror(errno));
	dir = io__dirname(to, err);
	if (!dir)
		return -1;
	rc = io_fsync_dir(dir, err);
	free(dir);
	return rc;
}

int io_write_file(const char *path, const void *data, size_t len, struct io_error *err)
{
	char rnd[13], *tmp;
	int fd = -1, made = 0;

	io__random_name(rnd, 12);
	tmp = io__strf(err, "%s.tmp-%s", path, rnd);
	if (!tmp)
		return -1;
	fd = io__create(tmp, err);
	if (fd < 0)
		goto fail;
	made = 1;
	if (io_pwrite_full(fd, tmp, data, len, 0, err) != 0)
		goto fail;
	if (io__sync_close(fd, tmp, err) != 0) {
		fd = -1;
		goto fail;
	}
	fd = -1;
	if (io__rename_sync(tmp, path, err) != 0)
		goto fail;
	free(tmp);
	return 0;
fail:
	if (fd >= 0)
		close(fd);
	if (made)
		unlink(tmp);
	free(tmp);
	return -1;
}

int64_t io_free_bytes(const char *dir)
{
	struct statvfs v;
	uint64_t unit;

	if (statvfs(dir, &v) != 0)
		return -1;
	unit = v.f_frsize ? v.f_frsize : v.f_bsize;
	if (unit == 0 || v.f_bavail > (uint64_t)INT64_MAX / unit)
		return INT64_MAX;
	return (int64_t)(v.f_bavail * unit);
}
