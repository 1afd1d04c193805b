/* SPDX-License-Identifier: Apache-2.0 */
#include "io/io_tensor.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

static const struct {
	const char *name;
	int size, rank;
} dtypes[] = {
	[IO_F32] = {"F32", 4, 10},  [IO_F16] = {"F16", 2, 6},  [IO_BF16] = {"BF16", 2, 7},
	[IO_F64] = {"F64", 8, 11},  [IO_I64] = {"I64", 8, 12}, [IO_I32] = {"I32", 4, 8},
	[IO_I16] = {"I16", 2, 4},   [IO_I8] = {"I8", 1, 3},    [IO_U8] = {"U8", 1, 2},
	[IO_BOOL] = {"BOOL", 1, 1}, [IO_U16] = {"U16", 2, 5},  [IO_U32] = {"U32", 4, 9},
	[IO_U64] = {"U64", 8, 13},
};
#define NDTYPES	   ((int)(sizeof(dtypes) / sizeof(dtypes[0])))
#define DTYPE_LIST "F64 F32 F16 BF16 I64 I32 I16 I8 U64 U32 U16 U8 BOOL"

int io__dtype_valid(enum io_dtype t)
{
	return (int)t >= 0 && (int)t < NDTYPES;
}
size_t io_dtype_size(enum io_dtype t)
{
	return io__dtype_valid(t) ? (size_t)dtypes[t].size : 0;
}
const char *io_dtype_name(enum io_dtype t)
{
	return io__dtype_valid(t) ? dtypes[t].name : "?";
}
int io__dtype_rank(enum io_dtype t)
{
	return dtypes[t].rank;
}

int io__dtype_parse(const char *name, enum io_dtype *out)
{
	for (int i = 0; i < NDTYPES; i++) {
		if (strcmp(dtypes[i].name, name) == 0) {
			*out = (enum io_dtype)i;
			return 0;
		}
	}
	return -1;
}

int io__tensor_size(struct io_tensor *t, const char *where, struct io_error *err)
{
	int64_t count = 1, bytes;
	int i, zero = 0;

	if (!io__dtype_valid(t->dtype))
		return io_errorf(err, EINVAL, "%s: unknown element type number %d", where, (int)t->dtype);
	if (t->ndim < 0 || t->ndim > IO_MAX_DIMS)
		return io_errorf(err, EBADMSG, "%s: %d dimensions; 0 to %d are supported", where, t->ndim,
				 IO_MAX_DIMS);
	for (i = 0; i < t->ndim; i++) {
		if (t->dims[i] < 0)
			return io_errorf(err, EBADMSG, "%s: dimension %d is negative (%" PRId64 ")", where, i,
					 t->dims[i]);
		zero |= t->dims[i] == 0;
	}
	/* An empty tensor stays empty whatever its other dimensions are. */
	for (i = 0; i < t->ndim && !zero; i++) {
		if (__builtin_mul_overflow(count, t->dims[i], &count))
			return io_errorf(err, EBADMSG, "%s: the product of its dimensions overflows 63 bits",
					 where);
	}
	if (zero)
		count = 0;
	if (__builtin_mul_overflow(count, (int64_t)dtypes[t->dtype].size, &bytes))
		return io_errorf(err, EBADMSG, "%s: its size in bytes overflows 63 bits", where);
	t->count = count;
	t->bytes = bytes;
	return 0;
}

int io__json_count(const json_t *j, int64_t max, int64_t *out)
{
	json_int_t v;

	if (!json_is_integer(j))
		return -1;
	v = json_integer_value(j);
	if (v < 0 || v > max)
		return -1;
	*out = v;
	return 0;
}

int io__tensor_from_json(const json_t *obj, struct io_tensor *t, const char *where, struct io_error *err)
{
	const json_t *dtype = json_object_get(obj, "dtype"), *shape = json_object_get(obj, "shape");
	size_t i;

	if (!json_is_string(dtype) || !json_is_array(shape))
		return io_errorf(err, EBADMSG, "%s: needs a string \"dtype\" and an array \"shape\"", where);
	if (io__dtype_parse(json_string_value(dtype), &t->dtype) != 0)
		return io_errorf(err, EBADMSG, "%s: element type %.20s is not supported; known are " DTYPE_LIST,
				 where, json_string_value(dtype));
	if (json_array_size(shape) > IO_MAX_DIMS)
		return io_errorf(err, EBADMSG, "%s: %zu dimensions; 0 to %d are supported", where,
				 json_array_size(shape), IO_MAX_DIMS);
	t->ndim = (int)json_array_size(shape);
	memset(t->dims, 0, sizeof(t->dims));
	for (i = 0; i < (size_t)t->ndim; i++) {
		if (io__json_count(json_array_get(shape, i), INT64_MAX, &t->dims[i]) != 0)
			return io_errorf(err, EBADMSG, "%s: dimension %zu is not a whole number >= 0", where, i);
	}
	return io__tensor_size(t, where, err);
}

void io__text_shape(struct io__text *s, int ndim, const int64_t *dims)
{
	io__text_str(s, "[");
	for (int i = 0; i < ndim; i++)
		io__text_addf(s, "%s%" PRId64, i ? "," : "", dims[i]);
	io__text_str(s, "]");
}
