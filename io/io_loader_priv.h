/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IO_IO_LOADER_PRIV_H
#define IO_IO_LOADER_PRIV_H
/* Private: one prefetched micro-batch and how it is filled. */
#include "io/io_dataset_priv.h"
#include "io/io_loader.h"

/* Everything a batch can need is allocated once. T = B * L tokens at most. */
struct io_slot {
	struct io_batch b;
	int64_t *cu;        /* [B * max_seg + 1] */
	uint32_t *ids;      /* [T + 1]: one more for the label that lies beyond the slice */
	int32_t *labels;    /* [T] */
	int64_t *positions; /* [T] */
};

/* Totals of one step over all ranks, from sample metadata alone. */
struct io_step_totals {
	int64_t step, targets, tokens;
};

/* Fills slot with micro-batch `micro` of `step`; totals is recomputed when its step differs. */
int io__slot_fill(struct io_dataset *ds, const struct io_loader_opts *o, int64_t step, int64_t micro,
		  struct io_step_totals *totals, struct io_slot *slot, struct io_error *err);

#endif
