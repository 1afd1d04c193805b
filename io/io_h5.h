/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IO_IO_H5_H
#define IO_IO_H5_H
/*
 * Private: the only files that call HDF5 are io_h5_read.c and io_h5_write.c. HDF5 validates a shard's structure and tells
 * where arrays lie; bytes move by pread and pwrite at those addresses, so nothing of HDF5 stays open and threads and fork
 * are no concern of the callers.
 */
#include <stdint.h>
#include "io/io_err.h"

enum io_h5_array {
	IO_H5_SAMPLE_OFF,     /* u64 [samples + 1] */
	IO_H5_SAMPLE_TARGETS, /* u64 [samples] */
	IO_H5_SAMPLE_XXH3,    /* u64 [samples][2] */
	IO_H5_SEG_OFF,        /* u64 [samples + 1] */
	IO_H5_SEG_LEN,        /* u32 [segments] */
	IO_H5_SEG_DOC,        /* u64 [segments] */
	IO_H5_SEG_START,      /* u64 [segments] */
	IO_H5_NARRAYS
};

/* Root attributes of a shard. */
struct io_h5_attrs {
	char uuid[37];
	char packing[16];
	char tokenizer_sha256[65];
	uint64_t seed;
	int64_t seq_length, vocab_size, eos_token_id, tokens, samples, segments;
};

/* A stretch of a file. */
struct io_extent {
	int64_t off, len;
};

struct io_h5_layout {
	struct io_h5_attrs attrs;
	int width;                           /* bytes of a token: 2 or 4 */
	int64_t array_off[IO_H5_NARRAYS];    /* file offsets; sizes follow from the attributes */
	struct io_extent *extents;           /* [nextents] where /tokens lies, in token order, neighbours merged */
	int nextents;
};

/* Bytes of array a in a shard of these dimensions. */
int64_t io__h5_array_bytes(enum io_h5_array a, int64_t samples, int64_t segments);

/* Reads attributes and addresses of a finished shard of file_bytes bytes; everything returned lies inside the file.
 * `name` is what error texts call the file. Free with io__h5_layout_free. */
int io__h5_open(const char *path, const char *name, int64_t file_bytes, struct io_h5_layout *out,
		struct io_error *err);
void io__h5_layout_free(struct io_h5_layout *l);

/* A shard being written. create allocates every array in the file (addresses are in *layout, owned by the writer); the
 * caller pwrites contents to `fd`; finish writes `complete`, closes and syncs. destroy without finish leaves a file that
 * opens nowhere. sparse = 0 reserves the disk space first, so that a full disk is met before anything is written. */
struct io_h5_writer;
int io__h5_create(const char *path, const char *name, const struct io_h5_attrs *attrs, int width, int sparse,
		  struct io_h5_writer **out, struct io_error *err);
const struct io_h5_layout *io__h5_writer_layout(const struct io_h5_writer *w);
int io__h5_writer_fd(const struct io_h5_writer *w);
int io__h5_finish(struct io_h5_writer *w, struct io_error *err);
void io__h5_destroy(struct io_h5_writer *w);

#define IO_H5_FORMAT  "slurm-ulysses-shard"
#define IO_H5_VERSION 1
/* Tokens of a chunk at least (less than twice as many): the chunk index stays small. A smaller shard is one chunk. */
#define IO_H5_CHUNK (1 << 20)

#endif
