/* SPDX-License-Identifier: Apache-2.0 */
/* Saving, the part every rank does: the temporary folder and one rank's part in it. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "io/io_ckpt_priv.h"
#include "io/io_file_priv.h"
#include "io/io_tensor.h"

/* Slices are hashed and written in blocks of this size (still in cache for the write); smaller ones are gathered.
 */
#define BLOCK ((size_t)1 << 20)

struct out {
	int fd;
	const char *path;
	char *buf; /* [BLOCK] */
	size_t n;
	int64_t at; /* file offset of buf */
};

int io_ckpt_begin(const char *root, int64_t step, const char *token, int64_t need_bytes, struct io_error *err)
{
	char *tmp = NULL;
	int64_t have;
	int made = 0;

	if (io__ckpt_check_step(root, step, err) != 0 || io__ckpt_check_token(token, err) != 0)
		return -1;
	if (need_bytes < 0)
		return io_errorf(err, EINVAL, "%s: a checkpoint of %" PRId64 " bytes is impossible", root,
				 need_bytes);
	if (io_mkdirs(root, err) != 0)
		return -1;
	io__ckpt_sweep(root);
	have = io_free_bytes(root);
	if (have >= 0 && (need_bytes > have || need_bytes / 20 > have - need_bytes))
		return io_errorf(err, ENOSPC,
				 "%s: checkpoint step %" PRId64 " needs %" PRId64
				 " bytes and 5%% slack, the file system has %" PRId64
				 " free; free some space, or point output_dir elsewhere",
				 root, step, need_bytes, have);
	tmp = io__ckpt_tmp(root, step, token, err);
	if (!tmp)
		return -1;
	if (mkdir(tmp, 0777) != 0) {
		io_errorf(err, errno, "%s: cannot make the folder: %s", tmp, strerror(errno));
		goto fail;
	}
	made = 1;
	if (io_fsync_dir(root, err) != 0)
		goto fail;
	free(tmp);
	return 0;
fail:
	if (made)
		rmdir(tmp);
	free(tmp);
	return -1;
}

static int flush(struct out *o, struct io_error *err)
{
	if (io_pwrite_full(o->fd, o->path, o->buf, o->n, o->at, err) != 0)
		return -1;
	o->at += (int64_t)o->n;
	o->n = 0;
	return 0;
}

/* n <= BLOCK */
static int put(struct out *o, const void *p, size_t n, struct io_error *err)
{
	if (n > BLOCK - o->n && flush(o, err) != 0)
		return -1;
	if (n == BLOCK) { /* no copy for what fills a block anyway; the buffer is empty here */
		if (io_pwrite_full(o->fd, o->path, p, n, o->at, err) != 0)
			return -1;
		o->at += (int64_t)n;
		return 0;
	}
	memcpy(o->buf + o->n, p, n);
	o->n += n;
	return 0;
}

static int put_hashed(struct out *o, const char *p, int64_t n, struct io_hash128 *hash, struct io_error *err)
{
	XXH3_state_t *st = XXH3_createState();
	XXH128_hash_t h;
	int rc = 0;

	if (!st || XXH3_128bits_reset(st) != XXH_OK)
		rc = io_errorf(err, ENOMEM, "%s: no memory to hash it", o->path);
	while (n > 0 && rc == 0) {
		size_t k = (uint64_t)n < BLOCK ? (size_t)n : BLOCK;

		XXH3_128bits_update(st, p, k);
		rc = put(o, p, k, err);
		p += k;
		n -= (int64_t)k;
	}
	if (rc == 0) {
		h = XXH3_128bits_digest(st);
		*hash = (struct io_hash128){.hi = h.high64, .lo = h.low64};
	}
	XXH3_freeState(st);
	return rc;
}

/* What one part is made of: declarations (one a slice that is not empty) and where they came from. */
struct part {
	char *path, *file; /* full path; name in the folder */
	struct io_st_decl *decls;
	const void **data;	 /* [n] */
	struct io__slice *slice; /* [n] */
	int64_t n;
	struct io__model m;
	/* layout */
	int64_t *order, size;
	struct io_tensor *t;
	struct io__text head;
};

static void part_free(struct part *p)
{
	for (int64_t i = 0; i < p->n; i++)
		free((char *)p->decls[i].name);
	free(p->decls);
	free(p->data);
	free(p->slice);
	free(p->order);
	free(p->t);
	free(p->path);
	free(p->file);
	io__text_free(&p->head);
	io__model_free(&p->m);
}

static int add_slice(struct part *p, const struct io_ckpt_slice *s, int64_t index, struct io_error *err)
{
	struct io_tensor t = {.name = s->tensor, .dtype = s->dtype, .ndim = s->ndim};
	struct io_st_decl *d = &p->decls[p->n];
	char where[256];
	int64_t id;

	if (!s->tensor || s->tensor[0] == '\0' || strlen(s->tensor) > IO__CKPT_MAX_NAME)
		return io_errorf(err, EINVAL, "%s: slice %" PRId64 ": a tensor's name has 1 to %d bytes", p->path,
				 index, IO__CKPT_MAX_NAME);
	snprintf(where, sizeof(where), "%.120s: tensor \"%.100s\"", p->path, s->tensor);
	memcpy(t.dims, s->dims, sizeof(t.dims));
	if (io__tensor_size(&t, where, err) != 0)
		return -1;
	if (s->begin < 0 || s->begin > s->end || s->end > t.count)
		return io_errorf(err, EINVAL,
				 "%s: has %" PRId64 " elements; slice [%" PRId64 ", %" PRId64
				 ") is not a range of them",
				 where, t.count, s->begin, s->end);
	if (!s->data && s->begin < s->end)
		return io_errorf(err, EINVAL, "%s: slice [%" PRId64 ", %" PRId64 ") comes without data", where,
				 s->begin, s->end);
	id = io__model_add_tensor(&p->m, &t, p->path, err);
	if (id < 0)
		return -1;
	if (s->begin == s->end) /* tells name and shape only */
		return 0;
	*d = (struct io_st_decl){.dtype = s->dtype, .ndim = 1, .dims = {s->end - s->begin}};
	d->name = io__strf(err, "%s@%" PRId64 "-%" PRId64, s->tensor, s->begin, s->end);
	if (!d->name)
		return -1;
	p->data[p->n] = s->data;
	p->slice[p->n] = (struct io__slice){.tensor = id, .begin = s->begin, .end = s->end};
	p->n++;
	return 0;
}

static int part_describe(struct part *p, const struct io_ckpt_slice *slices, int64_t n, struct io_error *err)
{
	int64_t i;

	if (n < 0)
		return io_errorf(err, EINVAL, "%s: %" PRId64 " slices are impossible", p->path, n);
	p->decls = calloc((size_t)n + 1, sizeof(*p->decls));
	p->data = calloc((size_t)n + 1, sizeof(*p->data));
	p->slice = calloc((size_t)n + 1, sizeof(*p->slice));
	if (!p->decls || !p->data || !p->slice)
		return io_errorf(err, ENOMEM, "%s: no memory for %" PRId64 " slices", p->path, n);
	for (i = 0; i < n; i++) {
		if (add_slice(p, &slices[i], i, err) != 0)
			return -1;
	}
	return io__st_layout(p->path, p->decls, p->n, &p->order, &p->t, &p->head, &p->size, err);
}

/* Writes head and slices in file order, hashing on the way, and syncs. Removes the file when that fails. */
static int part_write(struct part *p, const char *record, struct io_error *err)
{
	struct out o = {.fd = -1, .path = p->path};
	int64_t i;
	int made = 0;

	o.buf = malloc(BLOCK);
	if (!o.buf)
		return io_errorf(err, ENOMEM, "%s: no memory to write it", p->path);
	/* an earlier try of this part: its record goes first, so that none ever vouches for half a file */
	if ((unlink(record) != 0 && errno != ENOENT) || (unlink(p->path) != 0 && errno != ENOENT)) {
		io_errorf(err, errno, "%s: cannot replace an earlier one: %s", p->path, strerror(errno));
		goto fail;
	}
	o.fd = io__create(p->path, err);
	if (o.fd < 0)
		goto fail;
	made = 1;
	for (size_t at = 0; at < p->head.n; at += BLOCK) {
		if (put(&o, p->head.p + at, p->head.n - at < BLOCK ? p->head.n - at : BLOCK, err) != 0)
			goto fail;
	}
	for (i = 0; i < p->n; i++) {
		int64_t k = p->order[i];

		p->slice[k].offset = p->t[k].offset;
		p->slice[k].bytes = p->t[k].bytes;
		if (put_hashed(&o, p->data[k], p->t[k].bytes, &p->slice[k].hash, err) != 0)
			goto fail;
	}
	if (flush(&o, err) != 0)
		goto fail;
	i = io__sync_close(o.fd, p->path, err);
	o.fd = -1;
	if (i != 0)
		goto fail;
	free(o.buf);
	return 0;
fail:
	if (o.fd >= 0)
		close(o.fd);
	if (made)
		unlink(p->path);
	free(o.buf);
	return -1;
}

/* part-<i>.json: the marker that the part is complete, and what publish builds the manifest from */
static int part_record(struct part *p, const char *path, int64_t step, struct io_error *err)
{
	struct io__ckpt_file f = {.name = p->file, .bytes = p->size, .head_bytes = (int64_t)p->head.n};
	struct io__text text = {0};
	int64_t i;
	int rc = -1;

	f.head_hash = io_hash_mem(p->head.p, p->head.n);
	p->m.step = step;
	if (io__model_add_file(&p->m, &f, p->path, err) < 0)
		return -1;
	for (i = 0; i < p->n; i++) {
		if (io__model_add_slice(&p->m, &p->slice[i], p->path, err) != 0)
			return -1;
	}
	if (io__model_sort(&p->m, p->path, err) != 0)
		return -1;
	if (io__ckpt_dump(&p->m, IO__CKPT_PART_FORMAT, NULL, &text, err) == 0)
		rc = io_write_file(path, text.p, text.n, err);
	io__text_free(&text);
	return rc;
}

int io_ckpt_write_part(const char *root, int64_t step, const char *token, int part,
		       const struct io_ckpt_slice *slices, int64_t n, struct io_error *err)
{
	struct part p = {0};
	char *dir = NULL, *record = NULL;
	int rc = -1;

	if (io__ckpt_check_step(root, step, err) != 0 || io__ckpt_check_token(token, err) != 0)
		return -1;
	if (part < 0 || part >= IO__CKPT_MAX_PARTS)
		return io_errorf(err, EINVAL, "%s: part %d is not one of 0 to %d", root, part,
				 IO__CKPT_MAX_PARTS - 1);
	dir = io__ckpt_tmp(root, step, token, err);
	p.file = io__strf(err, "part-%05d.safetensors", part);
	if (!dir || !p.file)
		goto done;
	p.path = io__strf(err, "%s/%s", dir, p.file);
	record = io__strf(err, "%s/part-%05d.json", dir, part);
	if (!p.path || !record || part_describe(&p, slices, n, err) != 0 || part_write(&p, record, err) != 0)
		goto done;
	rc = part_record(&p, record, step, err);
	if (rc != 0)
		unlink(p.path);
done:
	part_free(&p);
	free(record);
	free(dir);
	return rc;
}
