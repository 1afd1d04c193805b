/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IO_IO_TENSOR_H
#define IO_IO_TENSOR_H
/* Private to io: element types and shapes as safetensors headers and checkpoint manifests share them. */
#include <jansson.h>

#include "io/io_safetensors.h"
#include "io/io_text.h"

/* Order in which the reference implementation stores dtypes (largest first); equal for equal types only. */
int io__dtype_rank(enum io_dtype t);
int io__dtype_parse(const char *name, enum io_dtype *out); /* 0 or -1 */
int io__dtype_valid(enum io_dtype t);

/* Checks dtype, ndim and dims of t and computes count and bytes; refuses products that do not fit 63 bits.
 * `where` begins the text ("file: tensor x"). */
int io__tensor_size(struct io_tensor *t, const char *where, struct io_error *err);
/* Members "dtype" and "shape" of obj into t (count and bytes computed); the name is the caller's. */
int io__tensor_from_json(const json_t *obj, struct io_tensor *t, const char *where, struct io_error *err);
/* Integer j in [0, max]; -1 when it is anything else. */
int io__json_count(const json_t *j, int64_t max, int64_t *out);
/* [a,b,...] */
void io__text_shape(struct io__text *s, int ndim, const int64_t *dims);

/* Layout of a safetensors file: order[] (n entries, caller frees) is the file order as indices into decls, t[] (n
 * entries, caller frees) the tensors in declaration order with absolute offsets and borrowed names, head the first
 * bytes of the file (length word and padded JSON; caller frees with io__text_free), *size the file's size. */
int io__st_layout(const char *path, const struct io_st_decl *decls, int64_t n, int64_t **order,
		  struct io_tensor **t, struct io__text *head, int64_t *size, struct io_error *err);

#endif
