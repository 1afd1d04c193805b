/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include "io/io_loader_priv.h"

static int step_totals(const struct io_dataset *ds, const struct io_loader_opts *o, int64_t step,
		       struct io_step_totals *t, struct io_error *err)
{
	if (t->step == step)
		return 0;
	t->targets = t->tokens = 0;
	for (int64_t i = 0; i < o->global_batch; i++) {
		struct io_sample s;

		if (io_dataset_sample(ds, io_order(o->seed, o->shuffle, ds->m.samples, step * o->global_batch + i), &s,
				      err) < 0)
			return -1;
		t->targets += s.targets;
		t->tokens += s.tokens;
	}
	t->step = step;
	return 0;
}

/* Labels and positions of the part [a, b) of one segment that begins at row token g and has len tokens. */
static void label_segment(struct io_slot *slot, int64_t t0, int64_t g, int64_t len, int64_t a, int64_t b)
{
	int64_t end = g + len;

	for (int64_t t = a; t < b; t++) {
		slot->positions[t - t0] = t - g;
		slot->labels[t - t0] = t + 1 < end ? (int32_t)slot->ids[t + 1 - t0] : IO_LABEL_IGNORE;
	}
}

/* Sample s as row tokens [row, row + s->tokens): its part inside [t0, t1), read with one token more when the slice ends
 * inside it, for the last label. That extra id falls into the place the next sample's first id takes, or the spare one. */
static int fill_sample(struct io_dataset *ds, int64_t index, const struct io_sample *s, int64_t row,
		       struct io_slot *slot, struct io_error *err)
{
	int64_t t0 = slot->b.t0, t1 = slot->b.t1, a = t0 > row ? t0 : row;
	int64_t b = t1 < row + s->tokens ? t1 : row + s->tokens, g = row;

	if (a >= b)
		return 0;
	if (io_dataset_read(ds, index, a - row, (b < row + s->tokens ? b + 1 : b) - row, slot->ids + (a - t0), err) < 0)
		return -1;
	for (int64_t j = 0; j < s->nseg && g < b; j++) {
		int64_t end = g + s->seg_len[j];

		if (end > a)
			label_segment(slot, t0, g, s->seg_len[j], a > g ? a : g, b < end ? b : end);
		g = end;
	}
	return 0;
}

int io__slot_fill(struct io_dataset *ds, const struct io_loader_opts *o, int64_t step, int64_t micro,
		  struct io_step_totals *totals, struct io_slot *slot, struct io_error *err)
{
	int64_t p0 = step * o->global_batch + (micro * o->dp_size + o->dp_rank) * o->micro_batch, row = 0;
	struct io_batch *b = &slot->b;
	struct io_sample s;

	*b = (struct io_batch){.step = step, .micro = micro, .cu = slot->cu, .ids = slot->ids, .labels = slot->labels,
			       .positions = slot->positions};
	if (step_totals(ds, o, step, totals, err) < 0)
		return -1;
	b->step_targets = totals->targets;
	b->step_tokens = totals->tokens;
	b->epoch = (double)((step + 1) * o->global_batch) / (double)ds->m.samples;
	slot->cu[0] = 0;
	for (int64_t i = 0; i < o->micro_batch; i++) {
		if (io_dataset_sample(ds, io_order(o->seed, o->shuffle, ds->m.samples, p0 + i), &s, err) < 0)
			return -1;
		for (int64_t j = 0; j < s.nseg; j++, b->ndoc++)
			slot->cu[b->ndoc + 1] = slot->cu[b->ndoc] + s.seg_len[j];
		b->tokens += s.tokens;
		b->row_targets += s.targets;
	}
	b->t1 = b->tokens;
	if (o->slice)
		o->slice(o->slice_arg, b->tokens, &b->t0, &b->t1);
	if (b->t0 < 0 || b->t1 < b->t0 || b->t1 > b->tokens)
		return io_errorf(err, EINVAL, "a rank's share of %" PRId64 " tokens came out as %" PRId64 " to %" PRId64,
				 b->tokens, b->t0, b->t1);
	for (int64_t i = 0; i < o->micro_batch; i++, row += s.tokens) {
		int64_t index = io_order(o->seed, o->shuffle, ds->m.samples, p0 + i);

		if (io_dataset_sample(ds, index, &s, err) < 0 || fill_sample(ds, index, &s, row, slot, err) < 0)
			return -1;
	}
	return 0;
}
