/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IO_IO_MANIFEST_H
#define IO_IO_MANIFEST_H
/* Private: dataset.json in memory, parsed strictly and written in one canonical form. */
#include <stddef.h>
#include <stdint.h>
#include "io/io_err.h"
#include "io/io_file.h"
#include "io/io_h5.h"

struct io_manifest_shard {
	char *file; /* plain name inside the folder */
	int64_t bytes, samples, tokens, segments;
	struct io_hash128 xxh3;      /* whole file */
	struct io_hash128 meta_xxh3; /* every byte outside the token extents, in file order */
	struct io_extent *extents;   /* [nextents] where the token bytes lie, in token order */
	int nextents;
};

struct io_manifest {
	int64_t seq_length, vocab_size, eos_token_id, pad_token_id;
	int64_t tokens, targets, samples, segments, documents;
	uint64_t seed;
	int width; /* bytes of a token: 2 or 4 */
	char packing[16], tokenizer_kind[16], tokenizer_sha256[65];
	struct io_manifest_shard *shards;
	int nshards;
};

/* `path` is for the texts. Counts of the shards add up to the totals; file names are plain and distinct. */
int io__manifest_parse(const char *path, const char *data, size_t len, struct io_manifest *out,
		       struct io_error *err);
/* Reads dir/dataset.json; hash (may be NULL) is of its bytes. */
int io__manifest_read(const char *dir, struct io_manifest *out, struct io_hash128 *hash, struct io_error *err);
int io__manifest_write(const char *dir, const struct io_manifest *m, struct io_error *err);
void io__manifest_free(struct io_manifest *m);

#define IO_DATASET_FORMAT  "slurm-ulysses-dataset"
#define IO_DATASET_VERSION 1
#define IO_MAX_SHARDS      1000000
#define IO_MAX_SEQ         (INT64_C(1) << 30) /* tokens of a sample; segment lengths are 32-bit */

#endif
