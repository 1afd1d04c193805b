/* SPDX-License-Identifier: Apache-2.0 */
/* Loading: any range of any tensor, whoever wrote it. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "io/io_ckpt_priv.h"
#include "io/io_file_priv.h"

/* Files kept open; a checkpoint of more parts opens the rest for each use, so descriptors stay bounded. */
#define KEEP_OPEN 64
#define BLOCK	  ((size_t)1 << 20)

struct io_ckpt {
	char *path, *state;
	char **file_paths; /* [m.nfiles] */
	struct io__model m;
};

static int open_file(const struct io_ckpt *c, int64_t i, struct io_error *err)
{
	const struct io__ckpt_file *f = &c->m.files[i];
	char *path = io__strf(err, "%s/%s", c->path, f->name);
	int64_t size = 0;
	int fd = path ? io__open_regular(path, &size, err) : -1;

	if (fd >= 0 && size != f->bytes) {
		io_errorf(err, EBADMSG, "%s: has %" PRId64 " bytes, the manifest says %" PRId64, path, size,
			  f->bytes);
		close(fd);
		fd = -1;
	}
	free(path);
	return fd;
}

static int open_files(struct io_ckpt *c, struct io_error *err)
{
	c->file_paths = calloc((size_t)c->m.nfiles + 1, sizeof(*c->file_paths));
	if (!c->file_paths)
		return io_errorf(err, ENOMEM, "%s: no memory to open it", c->path);
	for (int64_t i = 0; i < c->m.nfiles; i++) {
		int fd = -1;

		c->file_paths[i] = io__strf(err, "%s/%s", c->path, c->m.files[i].name);
		if (c->file_paths[i])
			fd = open_file(c, i, err);
		if (fd < 0)
			return -1;
		if (i < KEEP_OPEN)
			c->m.files[i].fd = fd;
		else
			close(fd);
	}
	return 0;
}

static int load_documents(struct io_ckpt *c, int64_t step, struct io_error *err)
{
	char *path = io__strf(err, "%s/manifest.json", c->path), *text = NULL;
	struct io_hash128 want, got;
	size_t len;
	int rc = -1;

	if (!path || io_read_file(path, IO__CKPT_MAX_MANIFEST, &text, &len, err) != 0)
		goto done;
	if (io__ckpt_parse(text, len, IO__CKPT_FORMAT, step, &c->m, &want, path, err) != 0)
		goto done;
	if (io__model_check(&c->m, path, err) != 0)
		goto done;
	free(path);
	path = io__strf(err, "%s/trainer_state.json", c->path);
	if (!path || io_read_file(path, IO__CKPT_MAX_STATE, &c->state, &len, err) != 0)
		goto done;
	got = io_hash_mem(c->state, len);
	if (got.hi != want.hi || got.lo != want.lo)
		io_errorf(err, EBADMSG, "%s: does not match its hash in the manifest; damaged or edited", path);
	else
		rc = 0;
done:
	free(text);
	free(path);
	return rc;
}

int io_ckpt_open(const char *root, int64_t step, struct io_ckpt **out, struct io_error *err)
{
	struct io_ckpt *c;

	*out = NULL;
	if (io__ckpt_check_step(root, step, err) != 0)
		return -1;
	c = calloc(1, sizeof(*c));
	if (!c)
		return io_errorf(err, ENOMEM, "%s: no memory to open a checkpoint", root);
	c->path = io__ckpt_find(root, step, err);
	if (!c->path || load_documents(c, step, err) != 0 || open_files(c, err) != 0) {
		io_ckpt_close(c);
		return -1;
	}
	*out = c;
	return 0;
}

void io_ckpt_close(struct io_ckpt *c)
{
	int e = errno;

	if (!c)
		return;
	for (int64_t i = 0; i < c->m.nfiles; i++) {
		if (c->m.files[i].fd >= 0)
			close(c->m.files[i].fd);
		if (c->file_paths)
			free(c->file_paths[i]);
	}
	free(c->file_paths);
	io__model_free(&c->m);
	free(c->path);
	free(c->state);
	free(c);
	errno = e;
}

const char *io_ckpt_state(const struct io_ckpt *c)
{
	return c->state;
}
const char *io_ckpt_path(const struct io_ckpt *c)
{
	return c->path;
}
int io_ckpt_nfiles(const struct io_ckpt *c)
{
	return (int)c->m.nfiles;
}
int64_t io_ckpt_ntensors(const struct io_ckpt *c)
{
	return c->m.ntensors;
}

const struct io_tensor *io_ckpt_tensor(const struct io_ckpt *c, int64_t i)
{
	return i >= 0 && i < c->m.ntensors ? &c->m.tensors[i] : NULL;
}

static int cmp_name(const void *a, const void *b)
{
	return strcmp(((const struct io_tensor *)a)->name, ((const struct io_tensor *)b)->name);
}

const struct io_tensor *io_ckpt_find(const struct io_ckpt *c, const char *name)
{
	struct io_tensor probe = {.name = name};

	return c->m.ntensors ? bsearch(&probe, c->m.tensors, (size_t)c->m.ntensors, sizeof(probe), cmp_name)
			     : NULL;
}

static int wrong_hash(const struct io_ckpt *c, const struct io__slice *s, struct io_error *err)
{
	return io_errorf(err, EBADMSG,
			 "%s: tensor \"%.100s\" elements [%" PRId64 ", %" PRId64 ") at byte %" PRId64
			 " do not match their hash; the file is damaged",
			 c->file_paths[s->file], c->m.tensors[s->tensor].name, s->begin, s->end, s->offset);
}

static int verify_fd(const struct io_ckpt *c, int64_t file, int fd, struct io_error *err)
{
	const struct io__ckpt_file *f = &c->m.files[file];
	const char *path = c->file_paths[file];
	struct io_hash128 h;
	int64_t i;

	if (io_hash_range(fd, path, 0, f->head_bytes, &h, err) != 0)
		return -1;
	if (h.hi != f->head_hash.hi || h.lo != f->head_hash.lo)
		return io_errorf(err, EBADMSG, "%s: its header does not match its hash; the file is damaged",
				 path);
	for (i = f->first; i < f->first + f->n; i++) {
		const struct io__slice *s = &c->m.slices[c->m.by_file[i]];

		if (io_hash_range(fd, path, s->offset, s->bytes, &h, err) != 0)
			return -1;
		if (h.hi != s->hash.hi || h.lo != s->hash.lo)
			return wrong_hash(c, s, err);
	}
	return 0;
}

int io_ckpt_verify_file(const struct io_ckpt *c, int i, struct io_error *err)
{
	int fd, rc;

	if (i < 0 || i >= c->m.nfiles)
		return io_errorf(err, EINVAL, "%s: has %" PRId64 " files; there is no file %d", c->path,
				 c->m.nfiles, i);
	fd = open_file(c, i, err); /* anew: the file may have been cut since open */
	if (fd < 0)
		return -1;
	rc = verify_fd(c, i, fd, err);
	close(fd);
	return rc;
}

/* A slice that is read whole is checked on the way; the bytes are in cache just then. */
static int read_whole(const struct io_ckpt *c, const struct io__slice *s, int fd, char *out, struct io_error *err)
{
	XXH3_state_t *st = XXH3_createState();
	int64_t at = 0;
	XXH128_hash_t h;
	int rc = 0;

	if (!st || XXH3_128bits_reset(st) != XXH_OK)
		rc = io_errorf(err, ENOMEM, "%s: no memory to check it", c->path);
	while (rc == 0 && at < s->bytes) {
		size_t n = (uint64_t)(s->bytes - at) < BLOCK ? (size_t)(s->bytes - at) : BLOCK;

		rc = io_pread_full(fd, c->file_paths[s->file], out + at, n, s->offset + at, err);
		if (rc == 0)
			XXH3_128bits_update(st, out + at, n);
		at += (int64_t)n;
	}
	if (rc == 0) {
		h = XXH3_128bits_digest(st);
		if (h.high64 != s->hash.hi || h.low64 != s->hash.lo)
			rc = wrong_hash(c, s, err);
	}
	XXH3_freeState(st);
	return rc;
}

/* Elements [begin, end) that lie inside slice s. */
static int read_slice(const struct io_ckpt *c, const struct io__slice *s, int64_t begin, int64_t end, char *out,
		      struct io_error *err)
{
	int64_t size = (int64_t)io_dtype_size(c->m.tensors[s->tensor].dtype);
	const struct io__ckpt_file *f = &c->m.files[s->file];
	int fd = f->fd >= 0 ? f->fd : open_file(c, s->file, err), rc;

	if (fd < 0)
		return -1;
	if (begin == s->begin && end == s->end)
		rc = read_whole(c, s, fd, out, err);
	else
		rc = io_pread_full(fd, c->file_paths[s->file], out, (size_t)((end - begin) * size),
				   s->offset + (begin - s->begin) * size, err);
	if (fd != f->fd)
		close(fd);
	return rc;
}

int io_ckpt_read(const struct io_ckpt *c, const char *name, int64_t begin, int64_t end, void *out,
		 struct io_error *err)
{
	const struct io_tensor *t = io_ckpt_find(c, name);
	int64_t lo, hi, size, at;
	char *p = out;

	if (!t)
		return io_errorf(err, ENOENT, "%s: has no tensor \"%.100s\"", c->path, name);
	if (begin < 0 || begin > end || end > t->count)
		return io_errorf(err, EINVAL,
				 "%s: tensor \"%.100s\" has %" PRId64 " elements; [%" PRId64 ", %" PRId64
				 ") is not a range of them",
				 c->path, name, t->count, begin, end);
	size = (int64_t)io_dtype_size(t->dtype);
	lo = c->m.tensor_first[t - c->m.tensors];
	hi = c->m.tensor_first[t - c->m.tensors + 1];
	while (lo < hi) { /* first slice that ends after begin */
		int64_t mid = lo + (hi - lo) / 2;

		if (c->m.slices[mid].end <= begin)
			lo = mid + 1;
		else
			hi = mid;
	}
	for (at = begin; at < end; lo++) { /* the cover is exact, so slice lo holds element `at` */
		const struct io__slice *s = &c->m.slices[lo];
		int64_t stop = s->end < end ? s->end : end;

		if (read_slice(c, s, at, stop, p, err) != 0)
			return -1;
		p += (stop - at) * size;
		at = stop;
	}
	return 0;
}
