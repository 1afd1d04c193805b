/* SPDX-License-Identifier: Apache-2.0 */
/* One row (micro-batch) through the model. */
#include "trainer/model_priv.h"

#include <math.h>

/* What every rank can see alike is checked first, so that a bad row fails on all of them and nobody is left waiting. */
static int check_documents(const struct tr_model *m, const struct io_batch *b, struct tr_error *err)
{
	int64_t max = m->config.max_position_embeddings;

	if (b->tokens < 1 || b->ndoc < 1 || b->cu[0] != 0 || b->cu[b->ndoc] != b->tokens)
		return tr_errorf(err, TR_EXIT_DATA, "row of %lld tokens in %lld documents: cu_seqlens do not span it",
				 (long long)b->tokens, (long long)b->ndoc);
	for (int64_t i = 0; i < b->ndoc; i++) {
		int64_t len = b->cu[i + 1] - b->cu[i];

		if (len < 1)
			return tr_errorf(err, TR_EXIT_DATA, "document %lld of the row has %lld tokens; each needs at least 1",
					 (long long)i, (long long)len);
		if (len > max)
			return tr_errorf(err, TR_EXIT_DATA,
					 "document %lld of the row has %lld tokens, more than max_position_embeddings %lld; pack "
					 "with a shorter --seq-length or raise model.max_position_embeddings",
					 (long long)i, (long long)len, (long long)max);
	}
	return 0;
}

static int check_own(const struct tr_model *m, const struct io_batch *b, struct tr_error *err)
{
	int64_t t0, t1, V = m->config.vocab_size;

	sp_split(b->tokens, m->plan->p, m->plan->rank, &t0, &t1);
	if (t0 != b->t0 || t1 != b->t1)
		return tr_errorf(err, TR_EXIT_FAIL, "rank %d of %d got tokens %lld to %lld of a row of %lld; its part is %lld to %lld",
				 m->plan->rank, m->plan->p, (long long)b->t0, (long long)b->t1, (long long)b->tokens,
				 (long long)t0, (long long)t1);
	for (int64_t i = 0; i < t1 - t0; i++) {
		if (b->ids[i] >= V || b->labels[i] >= V)
			return tr_errorf(err, TR_EXIT_DATA,
					 "token %lld of the row is %lld with label %lld; vocab_size is %lld: the dataset was packed "
					 "with another tokenizer than the model's",
					 (long long)(t0 + i), (long long)b->ids[i], (long long)b->labels[i], (long long)V);
		if (b->positions[i] < 0 || b->positions[i] >= m->rope_rows)
			return tr_errorf(err, TR_EXIT_DATA, "token %lld of the row has position %lld; its documents are shorter",
					 (long long)(t0 + i), (long long)b->positions[i]);
	}
	return 0;
}

static int upload(struct tr_model *m, const struct io_batch *b, struct tr_error *err)
{
	size_t n = (size_t)m->t;

	if (n == 0)
		return 0;
	return tr_k(m, err, "copy of token ids", m->ops->copy(m->ctx, m->a.ids, b->ids, n * sizeof(*b->ids), KN_H2D)) ||
	       tr_k(m, err, "copy of labels",
		    m->ops->copy(m->ctx, m->a.labels, b->labels, n * sizeof(*b->labels), KN_H2D)) ||
	       tr_k(m, err, "copy of positions",
		    m->ops->copy(m->ctx, m->a.pos, b->positions, n * sizeof(*b->positions), KN_H2D)) ?
		       -1 :
		       0;
}

static int begin_row(struct tr_model *m, const struct io_batch *b, struct tr_error *err)
{
	struct sp_error se = { 0 };
	int64_t longest = 1;

	if (check_documents(m, b, err))
		return -1;
	for (int64_t i = 0; i < b->ndoc; i++)
		if (b->cu[i + 1] - b->cu[i] > longest)
			longest = b->cu[i + 1] - b->cu[i];
	if (tr_rope_reserve(m, longest, err) || check_own(m, b, err))
		return -1;
	m->t = b->t1 - b->t0;
	m->s = b->tokens;
	if (tr_acts_reserve(m, m->t, m->s, err))
		return -1;
	if (sp_attn_set_row(m->attn, b->tokens, b->cu, b->ndoc, &se))
		return tr_error_sp(err, &se);
	return upload(m, b, err);
}

static int forward(struct tr_model *m, struct tr_error *err)
{
	int64_t L = m->config.num_hidden_layers;

	if (tr_k(m, err, "embedding",
		 m->ops->embed_fwd(m->ctx, KN_F32, m->t, m->config.vocab_size, m->config.hidden_size, m->a.ids,
				   m->weights + m->off.embed, m->a.layer[0].x1)))
		return -1;
	for (int64_t l = 0; l < L; l++)
		if (tr_block_fwd(m, l, l + 1 < L ? m->a.layer[l + 1].x1 : m->a.xf, err))
			return -1;
	return 0;
}

static int backward(struct tr_model *m, struct tr_error *err)
{
	for (int64_t l = m->config.num_hidden_layers; l-- > 0;)
		if (tr_block_bwd(m, l, err))
			return -1;
	return tr_k(m, err, "embedding backward",
		    m->ops->embed_bwd(m->ctx, KN_F32, m->t, m->config.vocab_size, m->config.hidden_size, m->a.ids, m->a.dx,
				      m->grads + m->off.embed));
}

int tr_model_row(struct tr_model *m, const struct io_batch *b, int train, double grad_scale, double *loss_sum,
		 float *nll, struct tr_error *err)
{
	double start = tr_now();

	if (!isfinite(grad_scale))
		return tr_errorf(err, TR_EXIT_FAIL, "grad_scale is %g: a step without valid targets has no gradient", grad_scale);
	/* A scale of 0 adds nothing to any gradient: forward alone does the same. Equal on all ranks of the row. */
	train = train && (float)grad_scale != 0.0f;
	if (begin_row(m, b, err) || forward(m, err) || tr_loss(m, train, grad_scale, nll != NULL, loss_sum, err) ||
	    (train && backward(m, err)))
		return -1;
	if (nll && m->t &&
	    tr_k(m, err, "copy of losses",
		 m->ops->copy(m->ctx, nll, m->a.nll, (size_t)m->t * sizeof(*nll), KN_D2H)))
		return -1;
	if (tr_k(m, err, "row", m->ops->sync(m->ctx)))
		return -1;
	m->row_seconds += tr_now() - start;
	return 0;
}

int tr_model_logits(struct tr_model *m, const struct io_batch *b, float *logits, struct tr_error *err)
{
	double start = tr_now();

	if (begin_row(m, b, err) || forward(m, err) || tr_head_logits(m, logits, err))
		return -1;
	m->row_seconds += tr_now() - start;
	return 0;
}
