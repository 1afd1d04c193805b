/* SPDX-License-Identifier: Apache-2.0 */
/* What follows from configuration, dataset and mesh together. Pure: the same on every rank. */
#include <inttypes.h>
#include <math.h>
#include "trainer/config.h"

static int resolve_model(struct tr_config *c, const struct io_dataset_info *d, struct tr_error *err)
{
	struct tr_model_config *m = &c->model;

	if (!m->vocab_size)
		m->vocab_size = d->vocab_size;
	if (m->vocab_size < d->vocab_size)
		return tr_errorf(err, TR_EXIT_USAGE, "model.vocab_size is %" PRId64 " but dataset %s holds ids up to %" PRId64
				 "; give at least %" PRId64, m->vocab_size, c->dataset, d->vocab_size - 1, d->vocab_size);
	if (!m->max_position_embeddings)
		m->max_position_embeddings = d->seq_length;
	if (m->max_position_embeddings < d->seq_length)
		return tr_errorf(err, TR_EXIT_USAGE, "model.max_position_embeddings is %" PRId64 " but dataset %s holds "
				 "sequences of %" PRId64 "; give at least that, or pack with a smaller --seq-length",
				 m->max_position_embeddings, c->dataset, d->seq_length);
	if (c->par.sp_seq_length && c->par.sp_seq_length != d->seq_length)
		return tr_errorf(err, TR_EXIT_USAGE, "parallelism_config.sp_seq_length is %" PRId64 " but dataset %s was packed "
				 "with %" PRId64 "; they must be equal, or leave sp_seq_length out",
				 c->par.sp_seq_length, c->dataset, d->seq_length);
	m->eos_token_id = d->eos_token_id;
	m->pad_token_id = d->pad_token_id;
	return tr_model_config_check(m, err);
}

static int resolve_batch(struct tr_config *c, struct tr_error *err)
{
	int64_t row = 0, g = 0;

	if (__builtin_mul_overflow(c->per_device_batch, c->dp_size, &row) ||
	    __builtin_mul_overflow(row, c->grad_accum ? c->grad_accum : 1, &g))
		return tr_errorf(err, TR_EXIT_USAGE, "per_device_train_batch_size x gradient_accumulation_steps x data-parallel "
				 "ranks is too large");
	if (!c->train_batch) {
		c->grad_accum = c->grad_accum ? c->grad_accum : 1;
		c->global_batch = c->train_batch = g;
		return 0;
	}
	if (c->train_batch % row)
		return tr_errorf(err, TR_EXIT_USAGE, "train_batch_size %" PRId64 " is not a multiple of "
				 "per_device_train_batch_size %" PRId64 " x %" PRId64 " data-parallel ranks; nearest: %" PRId64
				 " or %" PRId64, c->train_batch, c->per_device_batch, c->dp_size,
				 c->train_batch / row ? c->train_batch / row * row : row, (c->train_batch / row + 1) * row);
	if (c->grad_accum && c->grad_accum != c->train_batch / row)
		return tr_errorf(err, TR_EXIT_USAGE, "train_batch_size %" PRId64 " needs gradient_accumulation_steps %" PRId64
				 " (with %" PRId64 " x %" PRId64 " samples at once), not %" PRId64 "; give one of the two keys",
				 c->train_batch, c->train_batch / row, c->per_device_batch, c->dp_size, c->grad_accum);
	c->grad_accum = c->train_batch / row;
	c->global_batch = c->train_batch;
	return 0;
}

/* Epochs run into each other without a gap, so the last step of the run is the only one that may look past the end. */
static int resolve_steps(struct tr_config *c, const struct io_dataset_info *d, struct tr_error *err)
{
	if (c->max_steps > 0) {
		c->total_steps = c->max_steps;
	} else {
		long double x = ceill((long double)c->num_train_epochs * (long double)d->samples /
				      (long double)c->global_batch);
		if (!(x >= 1 && x < 9e15L))
			return tr_errorf(err, TR_EXIT_USAGE, "num_train_epochs %g of %" PRId64 " samples makes %Lg steps; give "
					 "max_steps", c->num_train_epochs, d->samples, x);
		c->total_steps = (int64_t)x;
	}
	c->max_steps = c->total_steps;
	c->warmup = c->warmup_steps ? c->warmup_steps : (int64_t)ceil((double)c->total_steps * c->warmup_ratio);
	return 0;
}

int tr_config_resolve(struct tr_config *c, const struct io_dataset_info *d, const struct sp_sizes *mesh,
		      struct tr_error *err)
{
	if (d->samples < 1)
		return tr_errorf(err, TR_EXIT_DATA, "dataset %s has no samples", c->dataset);
	if (mesh->cp > 1)
		return tr_errorf(err, TR_EXIT_USAGE, "cp_size %d is not supported by this release; cp_size can be 1", mesh->cp);
	if (mesh->sp > c->model.num_attention_heads)
		return tr_errorf(err, TR_EXIT_USAGE, "sp_size %d is larger than model.num_attention_heads (%" PRId64 "): each "
				 "rank of an sp group needs a head; the largest sp_size that works is %" PRId64,
				 mesh->sp, c->model.num_attention_heads, c->model.num_attention_heads);
	c->par.sp_size = mesh->sp;
	c->par.cp_size = mesh->cp;
	c->par.dp_shard_size = mesh->dp_shard;
	c->par.dp_replicate_size = mesh->dp_replicate;
	c->dp_size = (int64_t)mesh->dp_shard * mesh->dp_replicate;
	if (resolve_model(c, d, err) || resolve_batch(c, err))
		return -1;
	return resolve_steps(c, d, err);
}
