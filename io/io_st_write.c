/* SPDX-License-Identifier: Apache-2.0 */
/* Writing safetensors: the layout is fixed at creation, bytes may come in any order. */
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/io_file_priv.h"
#include "io/io_float16.h"
#include "io/io_safetensors.h"
#include "io/io_tensor.h"

#define CONVERT_ELEMS ((size_t)128 << 10)
#define MAX_HEADER    ((size_t)100000000)

/* Element ranges of one tensor that were given already: sorted, disjoint, neighbours merged. */
struct given {
	int64_t (*r)[2];
	size_t n, cap;
};

struct io_st_writer {
	char *path, *tmp;
	int fd;
	int64_t n;
	struct io_tensor *t; /* [n] declaration order; names owned */
	struct given *given; /* [n] */
};

struct ranked {
	const char *name;
	int rank;
	int64_t index;
};

static int cmp_ranked(const void *a, const void *b)
{
	const struct ranked *x = a, *y = b;

	if (x->rank != y->rank)
		return x->rank > y->rank ? -1 : 1;
	return strcmp(x->name, y->name);
}

static int cmp_ranked_name(const void *a, const void *b)
{
	return strcmp(((const struct ranked *)a)->name, ((const struct ranked *)b)->name);
}

/* Checks the declarations and leaves r in file order. */
static int rank_decls(const char *path, const struct io_st_decl *decls, int64_t n, struct ranked *r,
		      struct io_tensor *t, struct io_error *err)
{
	char where[256];
	int64_t i;

	for (i = 0; i < n; i++) {
		if (!decls[i].name || strcmp(decls[i].name, "__metadata__") == 0)
			return io_errorf(err, EINVAL,
					 "%s: tensor %" PRId64 " needs a name other than __metadata__", path, i);
		snprintf(where, sizeof(where), "%.120s: tensor \"%.100s\"", path, decls[i].name);
		t[i].name = decls[i].name;
		t[i].dtype = decls[i].dtype;
		t[i].ndim = decls[i].ndim;
		memcpy(t[i].dims, decls[i].dims, sizeof(t[i].dims));
		if (io__tensor_size(&t[i], where, err) != 0) {
			if (err)
				err->code = EINVAL;
			return -1;
		}
		r[i] = (struct ranked){decls[i].name, io__dtype_rank(decls[i].dtype), i};
	}
	qsort(r, (size_t)n, sizeof(*r), cmp_ranked_name);
	for (i = 1; i < n; i++) {
		if (strcmp(r[i - 1].name, r[i].name) == 0)
			return io_errorf(err, EINVAL, "%s: tensor \"%.100s\" is declared twice", path, r[i].name);
	}
	qsort(r, (size_t)n, sizeof(*r), cmp_ranked);
	return 0;
}

static int build_head(const char *path, const struct ranked *r, struct io_tensor *t, int64_t n,
		      struct io__text *head, int64_t *size, struct io_error *err)
{
	int64_t at = 0, i;
	uint64_t word;

	io__text_add(head, "\0\0\0\0\0\0\0\0", 8);
	io__text_str(head, "{\"__metadata__\":{\"format\":\"pt\"}");
	for (i = 0; i < n; i++) {
		struct io_tensor *x = &t[r[i].index];

		io__text_str(head, ",");
		if (io__text_json(head, x->name) != 0 && !head->oom)
			return io_errorf(err, EINVAL, "%s: the name of tensor %" PRId64 " is not valid UTF-8",
					 path, r[i].index);
		x->offset = at;
		if (__builtin_add_overflow(at, x->bytes, &at))
			return io_errorf(err, EINVAL, "%s: its tensors together overflow 63 bits", path);
		io__text_addf(head, ":{\"dtype\":\"%s\",\"shape\":", io_dtype_name(x->dtype));
		io__text_shape(head, x->ndim, x->dims);
		io__text_addf(head, ",\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", x->offset, at);
	}
	io__text_str(head, "}");
	while (!head->oom && head->n % 8 != 0)
		io__text_str(head, " ");
	if (head->oom)
		return io_errorf(err, ENOMEM, "%s: no memory for its header", path);
	if (head->n - 8 > MAX_HEADER)
		return io_errorf(err, EINVAL, "%s: its header would take %zu bytes; safetensors allows %zu", path,
				 head->n - 8, MAX_HEADER);
	if (__builtin_add_overflow(at, (int64_t)head->n, size))
		return io_errorf(err, EINVAL, "%s: its tensors together overflow 63 bits", path);
	word = htole64((uint64_t)head->n - 8);
	memcpy(head->p, &word, 8);
	for (i = 0; i < n; i++)
		t[i].offset += (int64_t)head->n;
	return 0;
}

int io__st_layout(const char *path, const struct io_st_decl *decls, int64_t n, int64_t **order,
		  struct io_tensor **t, struct io__text *head, int64_t *size, struct io_error *err)
{
	struct ranked *r = NULL;
	int64_t i;

	*order = NULL;
	*t = NULL;
	memset(head, 0, sizeof(*head));
	if (n < 0 || (uint64_t)n > SIZE_MAX / sizeof(**t) - 1)
		return io_errorf(err, EINVAL, "%s: cannot hold %" PRId64 " tensors", path, n);
	r = calloc((size_t)n + 1, sizeof(*r));
	*t = calloc((size_t)n + 1, sizeof(**t));
	*order = calloc((size_t)n + 1, sizeof(**order));
	if (!r || !*t || !*order) {
		io_errorf(err, ENOMEM, "%s: no memory for %" PRId64 " tensors", path, n);
		goto fail;
	}
	if (rank_decls(path, decls, n, r, *t, err) != 0 || build_head(path, r, *t, n, head, size, err) != 0)
		goto fail;
	for (i = 0; i < n; i++)
		(*order)[i] = r[i].index;
	free(r);
	return 0;
fail:
	free(r);
	free(*t);
	free(*order);
	*t = NULL;
	*order = NULL;
	io__text_free(head);
	return -1;
}

int io_st_writer_create(const char *path, const struct io_st_decl *decls, int64_t n, struct io_st_writer **out,
			struct io_error *err)
{
	struct io_st_writer *w = calloc(1, sizeof(*w));
	struct io__text head = {0};
	int64_t *order = NULL, size, i;
	char rnd[13];

	*out = NULL;
	if (!w)
		return io_errorf(err, ENOMEM, "%s: no memory to write it", path);
	w->fd = -1;
	if (io__st_layout(path, decls, n, &order, &w->t, &head, &size, err) != 0)
		goto fail;
	/* take ownership of the names before anything can fail, so that destroy frees only what is ours */
	for (i = 0; i < n; i++)
		w->t[i].name = NULL;
	w->n = n;
	for (i = 0; i < n; i++) {
		w->t[i].name = strdup(decls[i].name);
		if (!w->t[i].name)
			goto nomem;
	}
	io__random_name(rnd, 12);
	w->given = calloc((size_t)n + 1, sizeof(*w->given));
	w->path = strdup(path);
	w->tmp = io__strf(err, "%s.tmp-%s", path, rnd);
	if (!w->given || !w->path || !w->tmp)
		goto nomem;
	w->fd = io__create(w->tmp, err);
	if (w->fd < 0) {
		free(w->tmp);
		w->tmp = NULL; /* not ours to remove */
		goto fail;
	}
	if (io_pwrite_full(w->fd, w->tmp, head.p, head.n, 0, err) != 0)
		goto fail;
	free(order);
	io__text_free(&head);
	*out = w;
	return 0;
nomem:
	io_errorf(err, ENOMEM, "%s: no memory to write it", path);
fail:
	free(order);
	io__text_free(&head);
	io_st_writer_destroy(w);
	return -1;
}

/* Index of the first range that begins at or after x. */
static size_t lower(const struct given *g, int64_t x)
{
	size_t a = 0, b = g->n;

	while (a < b) {
		size_t m = a + (b - a) / 2;

		if (g->r[m][0] < x)
			a = m + 1;
		else
			b = m;
	}
	return a;
}

/* 1 when [begin, end) touches no range given already */
static int is_free(const struct given *g, int64_t begin, int64_t end)
{
	size_t k = lower(g, begin);

	return (k == 0 || g->r[k - 1][1] <= begin) && (k == g->n || g->r[k][0] >= end);
}

/* Records [begin, end), not empty and free; room for one more was reserved. */
static void record(struct given *g, int64_t begin, int64_t end)
{
	size_t k = lower(g, begin);
	int left = k > 0 && g->r[k - 1][1] == begin, right = k < g->n && g->r[k][0] == end;

	if (left && right) {
		g->r[k - 1][1] = g->r[k][1];
		memmove(&g->r[k], &g->r[k + 1], (g->n - k - 1) * sizeof(g->r[0]));
		g->n--;
	} else if (left) {
		g->r[k - 1][1] = end;
	} else if (right) {
		g->r[k][0] = begin;
	} else {
		memmove(&g->r[k + 1], &g->r[k], (g->n - k) * sizeof(g->r[0]));
		g->r[k][0] = begin;
		g->r[k][1] = end;
		g->n++;
	}
}

/* Checks a put and makes room to record it. */
static int prepare_put(struct io_st_writer *w, int64_t i, int64_t begin, int64_t end, struct io_error *err)
{
	struct given *g;

	if (w->fd < 0)
		return io_errorf(err, EINVAL, "%s: is finished; nothing can be added", w->path);
	if (i < 0 || i >= w->n)
		return io_errorf(err, EINVAL, "%s: tensor number %" PRId64 " of %" PRId64 " does not exist",
				 w->path, i, w->n);
	if (begin < 0 || begin > end || end > w->t[i].count)
		return io_errorf(err, EINVAL,
				 "%s: tensor \"%.100s\" has %" PRId64 " elements; [%" PRId64 ", %" PRId64
				 ") is not a range of them",
				 w->path, w->t[i].name, w->t[i].count, begin, end);
	g = &w->given[i];
	if (begin < end && !is_free(g, begin, end))
		return io_errorf(err, EINVAL,
				 "%s: elements [%" PRId64 ", %" PRId64 ") of tensor \"%.100s\" were given before",
				 w->path, begin, end, w->t[i].name);
	if (g->n == g->cap) {
		size_t cap = g->cap ? 2 * g->cap : 4;
		void *p = realloc(g->r, cap * sizeof(g->r[0]));

		if (!p)
			return io_errorf(err, ENOMEM, "%s: no memory to write it", w->path);
		g->r = p;
		g->cap = cap;
	}
	return 0;
}

int io_st_writer_put(struct io_st_writer *w, int64_t i, int64_t begin, int64_t end, const void *data,
		     struct io_error *err)
{
	int64_t size;

	if (prepare_put(w, i, begin, end, err) != 0)
		return -1;
	if (begin == end)
		return 0;
	size = (int64_t)io_dtype_size(w->t[i].dtype);
	if (io_pwrite_full(w->fd, w->tmp, data, (size_t)((end - begin) * size), w->t[i].offset + begin * size,
			   err) != 0)
		return -1;
	record(&w->given[i], begin, end);
	return 0;
}

int io_st_writer_put_f32(struct io_st_writer *w, int64_t i, int64_t begin, int64_t end, const float *data,
			 struct io_error *err)
{
	const struct io_tensor *t;
	uint16_t *buf;
	int64_t at;

	if (prepare_put(w, i, begin, end, err) != 0)
		return -1;
	t = &w->t[i];
	if (t->dtype == IO_F32)
		return io_st_writer_put(w, i, begin, end, data, err);
	if (t->dtype != IO_F16 && t->dtype != IO_BF16)
		return io_errorf(err, EINVAL,
				 "%s: tensor \"%.100s\" is %s; fp32 is converted to F32, F16 and BF16 only",
				 w->path, t->name, io_dtype_name(t->dtype));
	if (begin == end)
		return 0;
	buf = malloc(CONVERT_ELEMS * sizeof(*buf));
	if (!buf)
		return io_errorf(err, ENOMEM, "%s: no memory to convert tensor \"%.100s\"", w->path, t->name);
	for (at = begin; at < end;) {
		size_t n = (uint64_t)(end - at) < CONVERT_ELEMS ? (size_t)(end - at) : CONVERT_ELEMS;

		if (t->dtype == IO_F16)
			io__f32_to_f16(data, buf, n);
		else
			io__f32_to_bf16(data, buf, n);
		if (io_pwrite_full(w->fd, w->tmp, buf, n * 2, t->offset + 2 * at, err) != 0) {
			free(buf);
			return -1;
		}
		at += (int64_t)n;
		data += n;
	}
	free(buf);
	record(&w->given[i], begin, end);
	return 0;
}

int io_st_writer_finish(struct io_st_writer *w, struct io_error *err)
{
	int64_t i;
	int rc;

	if (w->fd < 0)
		return io_errorf(err, EINVAL, "%s: is finished already", w->path);
	for (i = 0; i < w->n; i++) {
		const struct given *g = &w->given[i];
		int64_t missing = g->n && g->r[0][0] == 0 ? g->r[0][1] : 0;

		if (missing != w->t[i].count)
			return io_errorf(err, EINVAL,
					 "%s: tensor \"%.100s\" is incomplete: element %" PRId64 " of %" PRId64
					 " was never given",
					 w->path, w->t[i].name, missing, w->t[i].count);
	}
	rc = io__sync_close(w->fd, w->tmp, err);
	w->fd = -1;
	if (rc == 0)
		rc = io__rename_sync(w->tmp, w->path, err);
	if (rc == 0) {
		free(w->tmp);
		w->tmp = NULL;
	}
	return rc;
}

void io_st_writer_destroy(struct io_st_writer *w)
{
	int e = errno;

	if (!w)
		return;
	if (w->fd >= 0)
		close(w->fd);
	if (w->tmp)
		unlink(w->tmp); /* unfinished or failed */
	for (int64_t i = 0; i < w->n; i++) {
		free((char *)w->t[i].name);
		if (w->given)
			free(w->given[i].r);
	}
	free(w->given);
	free(w->t);
	free(w->path);
	free(w->tmp);
	free(w);
	errno = e;
}
