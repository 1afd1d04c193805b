/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IO_IO_SHARD_H
#define IO_IO_SHARD_H
/* Private: one opened shard, its arrays in memory and checked, its tokens at known file offsets. */
#include <stdint.h>
#include "io/io_manifest.h"

struct io_shard {
	int64_t samples, segments;
	uint64_t *sample_off;     /* [samples + 1] */
	uint64_t *sample_targets; /* [samples] */
	uint64_t *sample_xxh3;    /* [samples][2] hi, lo */
	uint64_t *seg_off;        /* [samples + 1] */
	uint32_t *seg_len;        /* [segments] */
	uint64_t *seg_doc;        /* [segments] */
	uint64_t *seg_start;      /* [segments] */
	int64_t max_seg;          /* most segments of a sample */
	int64_t targets;
	char uuid[37]; /* as the file's attribute says */
	void *arena;
};

/* Checks everything but the token bytes: size, hash of all other bytes (before HDF5 parses any of them), attributes,
 * addresses and arrays. `name` is the path in texts. */
int io__shard_open(const char *path, const struct io_manifest *m, const struct io_manifest_shard *ms,
		   struct io_shard *out, struct io_error *err);
void io__shard_close(struct io_shard *s);

/* The parts io__shard_open is made of. The hash of every byte of [0, bytes) outside the extents: */
int io__shard_meta_hash(int fd, const char *path, int64_t bytes, const struct io_extent *ext, int next,
			struct io_hash128 *out, struct io_error *err);
/* Reads and checks the arrays where the layout says they are. */
int io__shard_load(int fd, const char *path, const struct io_h5_layout *l, int64_t seq_length, int64_t documents,
		   struct io_shard *out, struct io_error *err);
int io__shard_check(const char *path, const struct io_shard *s, int64_t tokens, int64_t seq_length, int64_t documents,
		    int64_t *max_seg, int64_t *targets, struct io_error *err);

/* Visits the token bytes [b0, b1) of a shard piece by piece, in order, as (file offset, length); stops at non-zero. */
int io__extents_walk(const struct io_extent *ext, int n, int64_t b0, int64_t b1,
		     int (*piece)(void *arg, int64_t off, int64_t len), void *arg);

#endif
