/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IO_IO_LOADER_H
#define IO_IO_LOADER_H
/*
 * Loader: an endless stream of micro-batches for one rank, prefetched by a background thread.
 *
 * Order is a pure function. Global position p (0, 1, 2, ...) is sample perm(seed, p / N)[p mod N] of N samples, epochs run
 * into each other without a gap. Step b uses positions [b*G, (b+1)*G), G = global_batch. With micro_batch B and dp_size D,
 * micro-batch m of dp rank r in that step holds positions b*G + (m*D + r)*B ... + B - 1, so G, not the layout, decides
 * which samples make a step. perm is a keyed Feistel network with cycle walking in two levels (blocks, then samples inside a
 * window); shuffle = 0 is the identity. Resume at any step is O(1).
 *
 * A micro-batch is one row: its B samples one after the other, T tokens in all, with cu_seqlens over segments. Only the
 * rank's own token range of it is read: [t0, t1) as `slice` says. Labels are shifted per segment before slicing:
 * label[t] = token[t + 1] inside the same segment, else -100. Positions count from 0 in each segment.
 */
#include <stddef.h>
#include <stdint.h>
#include "io/io_dataset.h"

#define IO_LABEL_IGNORE (-100)

/* Token range of this rank in a row of `total` tokens; must be pure. */
typedef void (*io_slice_fn)(void *arg, int64_t total, int64_t *t0, int64_t *t1);

struct io_loader_opts {
	uint64_t seed;
	int shuffle;
	int64_t global_batch; /* G samples a step; a multiple of micro_batch * dp_size */
	int64_t micro_batch;  /* B */
	int dp_rank, dp_size;
	io_slice_fn slice; /* NULL: everything */
	void *slice_arg;
	int64_t first_step; /* 0-based step to begin with */
	int prefetch;       /* micro-batches in flight, >= 1 */
};

struct io_batch {
	int64_t step;  /* 0-based */
	int64_t micro; /* 0 .. G / (B*D) - 1 */
	double epoch;  /* position of the step's end divided by N */
	int64_t tokens, ndoc;
	const int64_t *cu; /* [ndoc + 1], cu[ndoc] = tokens */
	int64_t t0, t1;    /* own range */
	const uint32_t *ids;      /* [t1 - t0] */
	const int32_t *labels;    /* [t1 - t0] */
	const int64_t *positions; /* [t1 - t0] */
	int64_t row_targets;  /* valid targets of the whole row */
	int64_t step_targets; /* valid targets of the whole step over all dp ranks: N of the loss */
	int64_t step_tokens;  /* tokens of the whole step over all dp ranks */
};

struct io_loader;
/* The dataset must outlive the loader. */
int io_loader_create(struct io_dataset *ds, const struct io_loader_opts *o, struct io_loader **out, struct io_error *err);
void io_loader_destroy(struct io_loader *l);

/* Next micro-batch; the batch stays valid until the next call or destroy. Blocks only when prefetch fell behind. */
int io_loader_next(struct io_loader *l, const struct io_batch **out, struct io_error *err);

/* Sample index at global position p: the pure order, for audits and tests. */
int64_t io_order(uint64_t seed, int shuffle, int64_t nsamples, int64_t p);

#endif
