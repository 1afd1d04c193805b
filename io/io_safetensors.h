/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IO_IO_SAFETENSORS_H
#define IO_IO_SAFETENSORS_H
/*
 * The safetensors container: u64 LE header length, JSON header, tensor bytes.
 * Reading refuses: header over 100,000,000 bytes, header not starting with '{', duplicate keys, unknown dtypes, products that
 * overflow, sizes that differ from shape x dtype, ranges that overlap, leave a gap or do not end at the end of the file.
 * Writing orders tensors as the reference does: by dtype, widest first (U64 I64 F64 F32 U32 I32 BF16 F16 U16 I16 I8 U8
 * BOOL), then name; pads the header to 8 bytes; sets __metadata__.format = "pt". The bytes equal the reference's.
 */
#include <stddef.h>
#include <stdint.h>
#include "io/io_err.h"
#include "io/io_file.h"

enum io_dtype { IO_F32, IO_F16, IO_BF16, IO_F64, IO_I64, IO_I32, IO_I16, IO_I8, IO_U8, IO_BOOL, IO_U16, IO_U32, IO_U64 };
size_t io_dtype_size(enum io_dtype t);
const char *io_dtype_name(enum io_dtype t); /* "F32", ... */

#define IO_MAX_DIMS 8
struct io_tensor {
	const char *name; /* owned by the container it comes from */
	enum io_dtype dtype;
	int ndim;
	int64_t dims[IO_MAX_DIMS];
	int64_t count;  /* elements */
	int64_t offset; /* byte offset in the file */
	int64_t bytes;
};

struct io_st; /* an open file */
int io_st_open(const char *path, struct io_st **out, struct io_error *err);
void io_st_close(struct io_st *s);
int64_t io_st_count(const struct io_st *s);
const struct io_tensor *io_st_at(const struct io_st *s, int64_t i); /* file order */
const struct io_tensor *io_st_find(const struct io_st *s, const char *name);
/* Elements [begin, end) of the tensor as stored. */
int io_st_read(const struct io_st *s, const struct io_tensor *t, int64_t begin, int64_t end, void *out,
	       struct io_error *err);
/* The same converted to fp32 (F32, F16, BF16 only). */
int io_st_read_f32(const struct io_st *s, const struct io_tensor *t, int64_t begin, int64_t end, float *out,
		   struct io_error *err);

/* Writing: declare all tensors, begin, then give data in any order and pieces, then finish (every byte must have been
 * given exactly once; fsync, rename into place, fsync of the directory). destroy before finish removes the temporary. */
struct io_st_writer;
struct io_st_decl {
	const char *name;
	enum io_dtype dtype;
	int ndim;
	int64_t dims[IO_MAX_DIMS];
};
int io_st_writer_create(const char *path, const struct io_st_decl *decls, int64_t n, struct io_st_writer **out,
			struct io_error *err);
/* Bytes of elements [begin, end) of decls[i], already in its dtype. */
int io_st_writer_put(struct io_st_writer *w, int64_t i, int64_t begin, int64_t end, const void *data,
		     struct io_error *err);
/* fp32 in, converted to the declared dtype (round to nearest even). */
int io_st_writer_put_f32(struct io_st_writer *w, int64_t i, int64_t begin, int64_t end, const float *data,
			 struct io_error *err);
int io_st_writer_finish(struct io_st_writer *w, struct io_error *err);
void io_st_writer_destroy(struct io_st_writer *w);

#endif
