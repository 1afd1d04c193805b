/* SPDX-License-Identifier: Apache-2.0 */
/* The description of a checkpoint: tensors, slices, files, and what must hold between them. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "io/io_ckpt_priv.h"
#include "io/io_tensor.h"

void io__model_free(struct io__model *m)
{
	int64_t i;

	for (i = 0; i < m->ntensors; i++)
		free((char *)m->tensors[i].name);
	for (i = 0; i < m->nfiles; i++)
		free(m->files[i].name);
	free(m->tensors);
	free(m->slices);
	free(m->files);
	free(m->tensor_first);
	free(m->by_file);
	memset(m, 0, sizeof(*m));
}

/* Room for one more element; the caller stores it. */
static int grow(void *array, int64_t n, int64_t *cap, size_t size, const char *where, struct io_error *err)
{
	void **a = array, *p;
	int64_t c;

	if (n < *cap)
		return 0;
	c = *cap ? 2 * *cap : 16;
	p = reallocarray(*a, (size_t)c, size);
	if (!p)
		return io_errorf(err, ENOMEM, "%s: no memory to describe the checkpoint", where);
	*a = p;
	*cap = c;
	return 0;
}

int64_t io__model_add_tensor(struct io__model *m, const struct io_tensor *t, const char *where,
			     struct io_error *err)
{
	char *name;

	if (grow(&m->tensors, m->ntensors, &m->tensors_cap, sizeof(*m->tensors), where, err) != 0)
		return -1;
	name = strdup(t->name);
	if (!name)
		return io_errorf(err, ENOMEM, "%s: no memory to describe the checkpoint", where);
	m->tensors[m->ntensors] = *t;
	m->tensors[m->ntensors].name = name;
	return m->ntensors++;
}

int64_t io__model_add_file(struct io__model *m, const struct io__ckpt_file *f, const char *where,
			   struct io_error *err)
{
	char *name;

	if (grow(&m->files, m->nfiles, &m->files_cap, sizeof(*m->files), where, err) != 0)
		return -1;
	name = strdup(f->name);
	if (!name)
		return io_errorf(err, ENOMEM, "%s: no memory to describe the checkpoint", where);
	m->files[m->nfiles] = *f;
	m->files[m->nfiles].name = name;
	m->files[m->nfiles].fd = -1;
	return m->nfiles++;
}

int io__model_add_slice(struct io__model *m, const struct io__slice *s, const char *where, struct io_error *err)
{
	if (grow(&m->slices, m->nslices, &m->slices_cap, sizeof(*m->slices), where, err) != 0)
		return -1;
	m->slices[m->nslices++] = *s;
	return 0;
}

static int cmp_tensor(const void *a, const void *b, void *arg)
{
	const struct io_tensor *t = arg;
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	int c = strcmp(t[x].name, t[y].name);

	return c ? c : (x > y) - (x < y);
}

static int cmp_file(const void *a, const void *b, void *arg)
{
	const struct io__ckpt_file *f = arg;

	return strcmp(f[*(const int64_t *)a].name, f[*(const int64_t *)b].name);
}

static int cmp_slice(const void *a, const void *b)
{
	const struct io__slice *x = a, *y = b;

	if (x->tensor != y->tensor)
		return x->tensor < y->tensor ? -1 : 1;
	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	return (x->end > y->end) - (x->end < y->end);
}

static int cmp_place(const void *a, const void *b, void *arg)
{
	const struct io__slice *s = arg;
	const struct io__slice *x = &s[*(const int64_t *)a], *y = &s[*(const int64_t *)b];

	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	return (x->offset > y->offset) - (x->offset < y->offset);
}

static int same_shape(const struct io_tensor *a, const struct io_tensor *b)
{
	return a->dtype == b->dtype && a->ndim == b->ndim &&
	       memcmp(a->dims, b->dims, (size_t)a->ndim * sizeof(a->dims[0])) == 0;
}

/* Sorts tensors by name and merges equal names; map[old index] = new index. */
static int sort_tensors(struct io__model *m, int64_t *perm, int64_t *map, const char *where, struct io_error *err)
{
	struct io_tensor *t = calloc((size_t)m->ntensors + 1, sizeof(*t));
	int64_t i, n = 0;
	int rc = 0;

	if (!t)
		return io_errorf(err, ENOMEM, "%s: no memory to describe the checkpoint", where);
	for (i = 0; i < m->ntensors; i++)
		perm[i] = i;
	qsort_r(perm, (size_t)m->ntensors, sizeof(*perm), cmp_tensor, m->tensors);
	for (i = 0; i < m->ntensors; i++) {
		const struct io_tensor *x = &m->tensors[perm[i]];

		if (n > 0 && strcmp(t[n - 1].name, x->name) == 0) {
			if (!same_shape(&t[n - 1], x))
				rc = io_errorf(
					err, EBADMSG,
					"%s: tensor \"%.100s\" appears with different element types or shapes",
					where, x->name);
			map[perm[i]] = n - 1;
			free((char *)x->name);
		} else {
			map[perm[i]] = n;
			t[n++] = *x;
		}
	}
	free(m->tensors);
	m->tensors = t;
	m->tensors_cap = m->ntensors + 1;
	m->ntensors = n;
	return rc;
}

static int sort_files(struct io__model *m, int64_t *perm, int64_t *map, const char *where, struct io_error *err)
{
	struct io__ckpt_file *f = calloc((size_t)m->nfiles + 1, sizeof(*f));
	int64_t i;

	if (!f)
		return io_errorf(err, ENOMEM, "%s: no memory to describe the checkpoint", where);
	for (i = 0; i < m->nfiles; i++)
		perm[i] = i;
	qsort_r(perm, (size_t)m->nfiles, sizeof(*perm), cmp_file, m->files);
	for (i = 0; i < m->nfiles; i++) {
		f[i] = m->files[perm[i]];
		map[perm[i]] = i;
	}
	free(m->files);
	m->files = f;
	m->files_cap = m->nfiles + 1;
	for (i = 1; i < m->nfiles; i++) {
		if (strcmp(f[i - 1].name, f[i].name) == 0)
			return io_errorf(err, EBADMSG, "%s: file %s appears twice", where, f[i].name);
	}
	return 0;
}

int io__model_sort(struct io__model *m, const char *where, struct io_error *err)
{
	size_t most = (size_t)(m->ntensors > m->nfiles ? m->ntensors : m->nfiles) + 1;
	int64_t *perm = calloc(most, sizeof(*perm)), *map = calloc(most, sizeof(*map)), i;
	int rc = -1;

	if (!perm || !map) {
		io_errorf(err, ENOMEM, "%s: no memory to describe the checkpoint", where);
		goto done;
	}
	if (sort_tensors(m, perm, map, where, err) != 0)
		goto done;
	for (i = 0; i < m->nslices; i++)
		m->slices[i].tensor = map[m->slices[i].tensor];
	if (sort_files(m, perm, map, where, err) != 0)
		goto done;
	for (i = 0; i < m->nslices; i++)
		m->slices[i].file = (int32_t)map[m->slices[i].file];
	if (m->nslices > 0)
		qsort(m->slices, (size_t)m->nslices, sizeof(*m->slices), cmp_slice);
	rc = 0;
done:
	free(perm);
	free(map);
	return rc;
}

/* Slices of tensor i, which begin at slice k, cover it exactly; returns the first slice after them. */
static int64_t check_cover(const struct io__model *m, int64_t i, int64_t k, const char *where,
			   struct io_error *err)
{
	const struct io_tensor *t = &m->tensors[i];
	int64_t at = 0, size = (int64_t)io_dtype_size(t->dtype);

	for (; k < m->nslices && m->slices[k].tensor == i; k++) {
		const struct io__slice *s = &m->slices[k];

		if (s->begin < 0 || s->begin >= s->end || s->end > t->count)
			return io_errorf(err, EBADMSG,
					 "%s: tensor \"%.100s\" has %" PRId64 " elements; slice [%" PRId64
					 ", %" PRId64 ") is not a range of them",
					 where, t->name, t->count, s->begin, s->end);
		if (s->begin != at)
			return io_errorf(
				err, EBADMSG, "%s: tensor \"%.100s\": elements [%" PRId64 ", %" PRId64 ") are %s",
				where, t->name, s->begin < at ? s->begin : at, s->begin < at ? at : s->begin,
				s->begin < at ? "there more than once" : "missing");
		if (s->bytes != (s->end - s->begin) * size)
			return io_errorf(err, EBADMSG,
					 "%s: tensor \"%.100s\" slice [%" PRId64 ", %" PRId64 ") needs %" PRId64
					 " bytes, not %" PRId64,
					 where, t->name, s->begin, s->end, (s->end - s->begin) * size, s->bytes);
		at = s->end;
	}
	if (at != t->count)
		return io_errorf(err, EBADMSG,
				 "%s: tensor \"%.100s\": elements [%" PRId64 ", %" PRId64 ") are missing", where,
				 t->name, at, t->count);
	return k;
}

/* File i: head, then its slices without gap or overlap, up to its last byte. k as above, into by_file. */
static int64_t check_tiles(struct io__model *m, int64_t i, int64_t k, const char *where, struct io_error *err)
{
	struct io__ckpt_file *f = &m->files[i];
	int64_t at = f->head_bytes;

	if (f->bytes < 0 || at < 8 || at > f->bytes)
		return io_errorf(err, EBADMSG,
				 "%s: file %s: a head of %" PRId64 " bytes in %" PRId64 " is impossible", where,
				 f->name, at, f->bytes);
	f->first = k;
	for (; k < m->nslices && m->slices[m->by_file[k]].file == i; k++) {
		const struct io__slice *s = &m->slices[m->by_file[k]];

		if (s->offset != at || s->bytes > f->bytes - at)
			return io_errorf(
				err, EBADMSG,
				"%s: file %s: a slice of tensor \"%.100s\" at byte %" PRId64 " with %" PRId64
				" bytes overlaps, leaves a gap or exceeds the file (expected byte %" PRId64
				", file of %" PRId64 ")",
				where, f->name, m->tensors[s->tensor].name, s->offset, s->bytes, at, f->bytes);
		at += s->bytes;
	}
	f->n = k - f->first;
	if (at != f->bytes)
		return io_errorf(err, EBADMSG, "%s: file %s: %" PRId64 " bytes at its end belong to no tensor",
				 where, f->name, f->bytes - at);
	return k;
}

int io__model_check(struct io__model *m, const char *where, struct io_error *err)
{
	int64_t i, k;

	if (io__model_sort(m, where, err) != 0)
		return -1;
	free(m->tensor_first);
	free(m->by_file);
	m->tensor_first = calloc((size_t)m->ntensors + 1, sizeof(*m->tensor_first));
	m->by_file = calloc((size_t)m->nslices + 1, sizeof(*m->by_file));
	if (!m->tensor_first || !m->by_file)
		return io_errorf(err, ENOMEM, "%s: no memory to describe the checkpoint", where);
	for (i = k = 0; i < m->ntensors; i++) {
		m->tensor_first[i] = k;
		k = check_cover(m, i, k, where, err);
		if (k < 0)
			return -1;
	}
	m->tensor_first[i] = k;
	for (i = 0; i < m->nslices; i++)
		m->by_file[i] = i;
	qsort_r(m->by_file, (size_t)m->nslices, sizeof(*m->by_file), cmp_place, m->slices);
	for (i = k = 0; i < m->nfiles; i++) {
		k = check_tiles(m, i, k, where, err);
		if (k < 0)
			return -1;
	}
	return 0;
}
