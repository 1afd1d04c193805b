/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_DATA_UTIL_H
#define TESTS_UNIT_DATA_UTIL_H
/* Random documents, packed; for the tests of packer, dataset and loader. */
#include "tests/unit/io_test.h"
#include "io/io_dataset.h"
#include "io/io_pack.h"

struct docs {
	int64_t n;
	int64_t *len;   /* [n] without the end mark */
	uint32_t **ids; /* [n][len] */
};

/* Lengths 0 .. maxlen, with the awkward ones around L made frequent; ids below vocab - 1 (the last one is the end mark). */
static inline struct docs docs_make(int64_t n, int64_t maxlen, int64_t L, uint32_t vocab, uint64_t seed)
{
	struct docs d = {n, calloc((size_t)n, sizeof(int64_t)), calloc((size_t)n, sizeof(uint32_t *))};
	const int64_t awkward[] = {0, 1, 2, L - 2, L - 1, L, L + 1, 2 * L - 2, 2 * L - 1, 2 * L, 3 * L};

	assert_true(d.len && d.ids);
	for (int64_t i = 0; i < n; i++) {
		uint64_t r = next_random(&seed);

		d.len[i] = r % 3 == 0 ? awkward[(r >> 8) % 11] : (int64_t)((r >> 8) % (uint64_t)(maxlen + 1));
		if (d.len[i] > maxlen)
			d.len[i] = maxlen;
		d.ids[i] = malloc((size_t)(d.len[i] + 1) * sizeof(uint32_t));
		assert_non_null(d.ids[i]);
		for (int64_t t = 0; t < d.len[i]; t++)
			d.ids[i][t] = (uint32_t)(next_random(&seed) % (vocab - 1));
	}
	return d;
}

static inline void docs_free(struct docs *d)
{
	for (int64_t i = 0; i < d->n; i++)
		free(d->ids[i]);
	free(d->ids);
	free(d->len);
}

static inline struct io_pack_opts pack_opts(const char *dir, int64_t L, enum io_packing packing, int64_t vocab)
{
	return (struct io_pack_opts){.out_dir = dir,
				     .seq_length = L,
				     .packing = packing,
				     .vocab_size = vocab,
				     .eos_token_id = vocab - 1,
				     .pad_token_id = -1,
				     .tokenizer_kind = "raw"};
}

static inline struct io_pack_report docs_pack(const struct docs *d, const struct io_pack_opts *o)
{
	struct io_error err = {.code = 0};
	struct io_pack_report r;
	struct io_packer *p;

	ok(io_packer_create(o, &p, &err));
	for (int64_t i = 0; i < d->n; i++)
		ok(io_packer_add(p, d->ids[i], d->len[i], &err));
	ok(io_packer_finish(p, &r, &err));
	io_packer_destroy(p);
	return r;
}

/* A dataset in one call: ndocs documents, several shards. */
static inline void make_dataset(const char *dir, int64_t ndocs, int64_t L, int64_t vocab, int64_t shard_bytes,
				uint64_t seed)
{
	struct docs d = docs_make(ndocs, 3 * L, L, (uint32_t)vocab, seed);
	struct io_pack_opts o = pack_opts(dir, L, IO_PACK_BFD, vocab);

	o.shard_bytes = shard_bytes;
	o.seed = seed;
	docs_pack(&d, &o);
	docs_free(&d);
}

#endif
