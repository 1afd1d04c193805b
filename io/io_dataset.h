/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IO_IO_DATASET_H
#define IO_IO_DATASET_H
/*
 * A packed dataset on disk: a folder with dataset.json (explicit list of shards) and HDF5 shards.
 *
 *   dataset.json   {"format":"slurm-ulysses-dataset","version":1,"seq_length":L,"packing":"bfd"|"wrapped","seed":..,
 *                   "vocab_size":V,"eos_token_id":..,"pad_token_id":..,"dtype":"u16"|"u32",
 *                   "tokenizer":{"kind":"byte"|"raw"|"hf","sha256":hex or ""},
 *                   "counts":{"tokens":..,"targets":..,"samples":..,"segments":..,"documents":..},
 *                   "shards":[{"file":name,"bytes":..,"xxh3":hex,"samples":..,"tokens":..},...]}
 *   tokenizer.json, tokenizer_config.json   carried along into the model directory, when there is one
 *   shard-00000.h5
 *     /tokens          u16|u32 LE [tokens]    samples in order, chunks unfiltered, early allocation
 *     /sample_off      u64 [n+1]              token start of each sample
 *     /sample_targets  u64 [n]                valid targets of each sample
 *     /sample_xxh3     u64 [n][2]             XXH3-128 (hi, lo) of the sample's token bytes
 *     /seg_off         u64 [n+1]              first segment of each sample
 *     /seg_len         u32 [segments]         > 0; sums to the sample's length
 *     /seg_doc         u64 [segments]         document id
 *     /seg_start       u64 [segments]         the segment's token offset inside its document
 *     attributes: format, version, uuid, seq_length, packing, seed, vocab_size, eos_token_id, tokens, samples,
 *     segments, `complete` = 1 written last
 *
 * A segment is a stretch of one document; it is one attention document: tokens see their own segment only, and the
 * target of a token is the next token of its segment (a segment of n tokens has n - 1 targets). A document longer than
 * L becomes several segments overlapping by one token, so that every target counts exactly once.
 * Opening checks everything but the token bytes: file sizes, attributes, every offset array. Tokens are read with
 * pread at the address HDF5 reports; io_dataset_verify and the loader check their hashes.
 */
#include <stddef.h>
#include <stdint.h>
#include "io/io_err.h"
#include "io/io_file.h"

struct io_dataset; /* opaque; immutable after open, may be shared by threads */

struct io_dataset_info {
	int64_t seq_length, vocab_size, eos_token_id, pad_token_id; /* ids -1 when there is none */
	int64_t tokens, targets, samples, segments, documents;
	int nshards;
	const char *packing, *tokenizer_kind, *tokenizer_sha256, *dir; /* owned by the dataset */
	struct io_hash128 manifest_hash;                               /* of dataset.json's bytes */
};

int io_dataset_open(const char *dir, struct io_dataset **out, struct io_error *err);
void io_dataset_close(struct io_dataset *ds);
void io_dataset_info(const struct io_dataset *ds, struct io_dataset_info *out);

/* Shape of sample i (0 <= i < samples): its length, valid targets and segments. *seg_len points into the dataset. */
struct io_sample {
	int64_t tokens, targets, nseg;
	const uint32_t *seg_len; /* [nseg] */
	const uint64_t *seg_doc; /* [nseg] */
	const uint64_t *seg_start;
};
int io_dataset_sample(const struct io_dataset *ds, int64_t i, struct io_sample *out, struct io_error *err);

/* Token ids [t0, t1) of sample i into out (uint32). The sample's hash is checked the first time any of it is read
 * through this dataset; ids >= vocab_size are refused. Thread-safe. */
int io_dataset_read(struct io_dataset *ds, int64_t i, int64_t t0, int64_t t1, uint32_t *out, struct io_error *err);

/* Checks every hash of every shard (file and samples). `progress` (may be NULL) gets bytes done and total; a bad shard is
 * reported through `bad` (may be NULL) and the check goes on. Returns the number of bad shards, or -1 when the dataset
 * cannot be opened. */
int io_dataset_verify(const char *dir, void (*progress)(void *arg, int64_t done, int64_t total),
		      void (*bad)(void *arg, const char *text), void *arg, struct io_error *err);

#endif
