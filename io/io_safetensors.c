/* SPDX-License-Identifier: Apache-2.0 */
/* Reading safetensors: 8 bytes header length, JSON header, tensor bytes. */
#include "io/io_safetensors.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/io_file_priv.h"
#include "io/io_float16.h"
#include "io/io_tensor.h"

#define MAX_HEADER    INT64_C(100000000) /* the reference's limit */
#define CONVERT_ELEMS ((size_t)128 << 10)

struct io_st {
	char *path;
	int fd;
	int64_t n;
	struct io_tensor *t; /* [n], file order */
	struct io_tensor **by_name;
};

static int cmp_offset(const void *a, const void *b)
{
	const struct io_tensor *x = a, *y = b;

	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	/* empty tensors come before the one that starts at the same byte */
	return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int cmp_name(const void *a, const void *b)
{
	const struct io_tensor *const *x = a, *const *y = b;

	return strcmp((*x)->name, (*y)->name);
}

static int check_metadata(const char *path, const json_t *meta, struct io_error *err)
{
	const char *key;
	json_t *v;

	if (!json_is_object(meta))
		return io_errorf(err, EBADMSG, "%s: __metadata__ is not an object", path);
	json_object_foreach((json_t *)meta, key, v)
	{
		if (!json_is_string(v))
			return io_errorf(err, EBADMSG, "%s: __metadata__ entry \"%.80s\" is not a string", path,
					 key);
	}
	return 0;
}

/* One header entry into t; data is the file offset where tensor bytes begin, len their number. */
static int parse_entry(const char *path, const char *name, const json_t *v, int64_t data, int64_t len,
		       struct io_tensor *t, struct io_error *err)
{
	const json_t *off;
	char where[256];
	int64_t b, e;

	snprintf(where, sizeof(where), "%.120s: tensor \"%.100s\"", path, name);
	if (!json_is_object(v))
		return io_errorf(err, EBADMSG, "%s: its header entry is not an object", where);
	if (io__tensor_from_json(v, t, where, err) != 0)
		return -1;
	off = json_object_get(v, "data_offsets");
	if (!json_is_array(off) || json_array_size(off) != 2 ||
	    io__json_count(json_array_get(off, 0), len, &b) != 0 ||
	    io__json_count(json_array_get(off, 1), len, &e) != 0 || b > e)
		return io_errorf(err, EBADMSG,
				 "%s: data_offsets must be [begin, end] with 0 <= begin <= end <= %" PRId64
				 ", the bytes of data in the file (truncated file?)",
				 where, len);
	if (e - b != t->bytes)
		return io_errorf(err, EBADMSG,
				 "%s: holds %" PRId64 " bytes, its shape and element type need %" PRId64, where,
				 e - b, t->bytes);
	t->offset = data + b;
	t->name = strdup(name);
	if (!t->name)
		return io_errorf(err, ENOMEM, "%s: no memory", where);
	return 0;
}

/* Fills s->t from the parsed header; the tensors must tile [data, data + len) without gap or overlap. */
static int parse_header(struct io_st *s, const json_t *root, int64_t data, int64_t len, struct io_error *err)
{
	const char *key;
	json_t *v;
	int64_t i, at = data;

	s->t = calloc(json_object_size(root) + 1, sizeof(*s->t));
	s->by_name = calloc(json_object_size(root) + 1, sizeof(struct io_tensor *));
	if (!s->t || !s->by_name)
		return io_errorf(err, ENOMEM, "%s: no memory for its header", s->path);
	json_object_foreach((json_t *)root, key, v)
	{
		if (strcmp(key, "__metadata__") == 0) {
			if (check_metadata(s->path, v, err) != 0)
				return -1;
			continue;
		}
		if (parse_entry(s->path, key, v, data, len, &s->t[s->n], err) != 0)
			return -1;
		s->n++;
	}
	qsort(s->t, (size_t)s->n, sizeof(*s->t), cmp_offset);
	for (i = 0; i < s->n; i++) {
		if (s->t[i].offset != at)
			return io_errorf(err, EBADMSG,
					 "%s: tensor \"%.100s\" begins at data byte %" PRId64
					 ", but the one before it ends at %" PRId64 " (%s)",
					 s->path, s->t[i].name, s->t[i].offset - data, at - data,
					 s->t[i].offset < at ? "overlap" : "gap");
		at += s->t[i].bytes;
		s->by_name[i] = &s->t[i];
	}
	if (at != data + len)
		return io_errorf(err, EBADMSG, "%s: %" PRId64 " bytes lie behind the last tensor", s->path,
				 data + len - at);
	qsort(s->by_name, (size_t)s->n, sizeof(*s->by_name), cmp_name);
	return 0;
}

static int load_header(struct io_st *s, int64_t size, struct io_error *err)
{
	uint64_t word;
	int64_t hlen;
	char *text = NULL;
	json_t *root = NULL;
	json_error_t je;
	int rc = -1;

	if (size < 8)
		return io_errorf(err, EBADMSG, "%s: %" PRId64 " bytes are too few for a safetensors file", s->path,
				 size);
	if (io_pread_full(s->fd, s->path, &word, 8, 0, err) != 0)
		return -1;
	word = le64toh(word);
	if (word > (uint64_t)MAX_HEADER || (int64_t)word > size - 8)
		return io_errorf(err, EBADMSG,
				 "%s: claims a header of %" PRIu64 " bytes in a file of %" PRId64
				 "; not a safetensors file, or truncated",
				 s->path, word, size);
	hlen = (int64_t)word;
	text = malloc((size_t)hlen + 1);
	if (!text)
		return io_errorf(err, ENOMEM, "%s: no memory for its header", s->path);
	if (io_pread_full(s->fd, s->path, text, (size_t)hlen, 8, err) != 0)
		goto done;
	if (hlen == 0 || text[0] != '{') {
		io_errorf(err, EBADMSG, "%s: its header does not begin with '{'; not a safetensors file", s->path);
		goto done;
	}
	root = json_loadb(text, (size_t)hlen, JSON_REJECT_DUPLICATES, &je);
	if (!root) {
		io_errorf(err, EBADMSG, "%s: its header is not valid JSON: %s at byte %d", s->path, je.text,
			  je.position);
		goto done;
	}
	rc = parse_header(s, root, 8 + hlen, size - 8 - hlen, err);
done:
	json_decref(root);
	free(text);
	return rc;
}

int io_st_open(const char *path, struct io_st **out, struct io_error *err)
{
	struct io_st *s = calloc(1, sizeof(*s));
	int64_t size = 0;

	*out = NULL;
	if (!s || !(s->path = strdup(path))) {
		free(s);
		return io_errorf(err, ENOMEM, "%s: no memory to open it", path);
	}
	s->fd = io__open_regular(path, &size, err);
	if (s->fd < 0 || load_header(s, size, err) != 0) {
		io_st_close(s);
		return -1;
	}
	*out = s;
	return 0;
}

void io_st_close(struct io_st *s)
{
	int e = errno;

	if (!s)
		return;
	if (s->fd >= 0)
		close(s->fd);
	for (int64_t i = 0; i < s->n; i++)
		free((char *)s->t[i].name);
	free(s->t);
	free(s->by_name);
	free(s->path);
	free(s);
	errno = e;
}

int64_t io_st_count(const struct io_st *s)
{
	return s->n;
}

const struct io_tensor *io_st_at(const struct io_st *s, int64_t i)
{
	return i >= 0 && i < s->n ? &s->t[i] : NULL;
}

const struct io_tensor *io_st_find(const struct io_st *s, const char *name)
{
	struct io_tensor probe = {.name = name}, *p = &probe, **hit;

	hit = s->n ? bsearch(&p, s->by_name, (size_t)s->n, sizeof(p), cmp_name) : NULL;
	return hit ? *hit : NULL;
}

static int check_range(const struct io_st *s, const struct io_tensor *t, int64_t begin, int64_t end,
		       struct io_error *err)
{
	if (begin >= 0 && begin <= end && end <= t->count)
		return 0;
	return io_errorf(err, EINVAL,
			 "%s: tensor \"%.100s\" has %" PRId64 " elements; [%" PRId64 ", %" PRId64
			 ") is not a range of them",
			 s->path, t->name, t->count, begin, end);
}

int io_st_read(const struct io_st *s, const struct io_tensor *t, int64_t begin, int64_t end, void *out,
	       struct io_error *err)
{
	int64_t size = (int64_t)io_dtype_size(t->dtype);

	if (check_range(s, t, begin, end, err) != 0)
		return -1;
	return io_pread_full(s->fd, s->path, out, (size_t)((end - begin) * size), t->offset + begin * size, err);
}

int io_st_read_f32(const struct io_st *s, const struct io_tensor *t, int64_t begin, int64_t end, float *out,
		   struct io_error *err)
{
	uint16_t *buf;
	int rc = 0;

	if (t->dtype == IO_F32)
		return io_st_read(s, t, begin, end, out, err);
	if (t->dtype != IO_F16 && t->dtype != IO_BF16)
		return io_errorf(err, EINVAL,
				 "%s: tensor \"%.100s\" is %s; only F32, F16 and BF16 are read as fp32", s->path,
				 t->name, io_dtype_name(t->dtype));
	if (check_range(s, t, begin, end, err) != 0)
		return -1;
	buf = malloc(CONVERT_ELEMS * sizeof(*buf));
	if (!buf)
		return io_errorf(err, ENOMEM, "%s: no memory to convert tensor \"%.100s\"", s->path, t->name);
	while (begin < end && rc == 0) {
		size_t n = (uint64_t)(end - begin) < CONVERT_ELEMS ? (size_t)(end - begin) : CONVERT_ELEMS;

		rc = io_st_read(s, t, begin, begin + (int64_t)n, buf, err);
		if (rc == 0 && t->dtype == IO_F16)
			io__f16_to_f32(buf, out, n);
		else if (rc == 0)
			io__bf16_to_f32(buf, out, n);
		begin += (int64_t)n;
		out += n;
	}
	free(buf);
	return rc;
}
