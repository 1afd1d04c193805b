/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "io/io_file_priv.h"
#include "io/io_pack_priv.h"

/* Calls visit for path, or for every regular file below it in byte order of names. Depth is bounded by the path length
 * the kernel takes; links inside folders are skipped, so that a loop is impossible. */
typedef int (*visit_fn)(void *arg, const char *path, struct io_error *err);

static int keep_visible(const struct dirent *d)
{
	return d->d_name[0] != '.';
}

static int by_bytes(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static int walk(const char *path, int top, visit_fn visit, void *arg, struct io_error *err)
{
	struct dirent **names = NULL;
	struct stat st;
	int n, rc = 0;

	if ((top ? stat(path, &st) : lstat(path, &st)) < 0)
		return io_errorf(err, errno, "%s: cannot be read: %s", path, strerror(errno));
	if (S_ISREG(st.st_mode))
		return visit(arg, path, err);
	if (!S_ISDIR(st.st_mode))
		return top ? io_errorf(err, EINVAL, "%s: is neither a file nor a folder", path) : 0;
	n = scandir(path, &names, keep_visible, by_bytes);
	if (n < 0)
		return io_errorf(err, errno, "%s: cannot be listed: %s", path, strerror(errno));
	for (int i = 0; i < n; i++) {
		if (rc == 0) {
			char *sub = io__strf(err, "%s/%s", path, names[i]->d_name);

			rc = sub ? walk(sub, 0, visit, arg, err) : -1;
			free(sub);
		}
		free(names[i]);
	}
	free(names);
	return rc;
}

int io_source_walk(const char *path, visit_fn visit, void *arg, struct io_error *err)
{
	return walk(path, 1, visit, arg, err);
}

struct text {
	io_emit_bytes emit;
	void *arg;
};

static int one_text(void *arg, const char *path, struct io_error *err)
{
	struct text *t = arg;
	char *data = NULL;
	size_t len = 0;
	int rc;

	/* A text file is one document and is packed as one: it has to fit in memory. */
	if (io_read_file(path, (size_t)1 << 34, &data, &len, err) < 0)
		return -1;
	rc = t->emit(t->arg, data, len, err);
	free(data);
	return rc;
}

int io_source_text(const char *path, io_emit_bytes emit, void *arg, struct io_error *err)
{
	struct text t = {emit, arg};

	return walk(path, 1, one_text, &t, err);
}

struct raw {
	int width;
	int64_t eos;
	io_emit_ids emit;
	void *arg;
};

/* The ids of a document so far; the file is read in pieces, so only a document has to fit in memory. */
static int raw_pieces(const struct raw *r, int fd, const char *path, int64_t bytes, struct io_vec *doc,
		      struct io_error *err)
{
	unsigned char buf[65536];

	for (int64_t off = 0; off < bytes;) {
		size_t n = bytes - off < (int64_t)sizeof(buf) ? (size_t)(bytes - off) : sizeof(buf);

		if (io_pread_full(fd, path, buf, n, off, err) < 0 ||
		    io__vec_room(doc, (int64_t)n / r->width, sizeof(uint32_t), err) < 0)
			return -1;
		for (const unsigned char *p = buf; p < buf + n; p += r->width) {
			uint32_t id = p[0] | (uint32_t)p[1] << 8;

			if (r->width == 4)
				id |= (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
			if (r->eos < 0 || id != r->eos) {
				((uint32_t *)doc->p)[doc->n++] = id;
				continue;
			}
			if (r->emit(r->arg, doc->p, doc->n, err) < 0)
				return -1;
			doc->n = 0;
		}
		off += (int64_t)n;
	}
	return doc->n > 0 ? r->emit(r->arg, doc->p, doc->n, err) : 0;
}

static int one_raw(void *arg, const char *path, struct io_error *err)
{
	const struct raw *r = arg;
	struct io_vec doc = {NULL, 0, 0};
	int64_t bytes = 0;
	int fd = io__open_regular(path, &bytes, err), rc;

	if (fd < 0)
		return -1;
	if (bytes % r->width)
		rc = io_errorf(err, EBADMSG, "%s: %lld bytes are no whole number of %d-byte ids", path, (long long)bytes,
			       r->width);
	else
		rc = raw_pieces(r, fd, path, bytes, &doc, err);
	free(doc.p);
	close(fd);
	return rc;
}

int io_source_raw(const char *path, int width, int64_t eos, io_emit_ids emit, void *arg, struct io_error *err)
{
	struct raw r = {width, eos, emit, arg};

	if (width != 2 && width != 4)
		return io_errorf(err, EINVAL, "raw ids of %d bytes; 2 and 4 are allowed", width);
	return walk(path, 1, one_raw, &r, err);
}

struct jsonl {
	const char *field;
	io_emit_bytes emit;
	void *arg;
};

static int one_jsonl(void *arg, const char *path, struct io_error *err)
{
	const struct jsonl *j = arg;
	char *line = NULL;
	size_t cap = 0;
	ssize_t n;
	int rc = 0;
	FILE *f = fopen(path, "re");

	if (!f)
		return io_errorf(err, errno, "%s: cannot be opened: %s", path, strerror(errno));
	errno = 0;
	for (int64_t k = 1; rc == 0 && (n = getline(&line, &cap, f)) >= 0; k++)
		rc = io__jsonl_line(path, k, line, (size_t)n, j->field, j->emit, j->arg, err);
	if (rc == 0 && !feof(f))
		rc = io_errorf(err, errno ? errno : EIO, "%s: cannot be read: %s", path, strerror(errno ? errno : EIO));
	free(line);
	fclose(f);
	return rc;
}

int io_source_jsonl(const char *path, const char *field, io_emit_bytes emit, void *arg, struct io_error *err)
{
	struct jsonl j = {field, emit, arg};

	return walk(path, 1, one_jsonl, &j, err);
}
