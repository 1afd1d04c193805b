/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LM head fused with the cross-entropy: a tile of tokens at a time goes logits -> loss and gradient of the logits in place ->
 * gradients of the normed hidden state and of the head, so no [T][V] buffer exists. Tile borders change nothing but the
 * order in which the head's gradient is summed.
 */
#include "trainer/model_priv.h"

static int final_norm(struct tr_model *m, struct tr_error *err)
{
	int64_t C = m->config.hidden_size;

	return tr_k(m, err, "final rmsnorm",
		    m->ops->rmsnorm_fwd(m->ctx, KN_F32, m->t, C, (float)m->config.rms_norm_eps, m->a.xf, C,
					m->weights + m->off.norm, m->a.n, C, m->a.rstdf));
}

static int tile_logits(struct tr_model *m, int64_t t0, int64_t n, struct tr_error *err)
{
	int64_t C = m->config.hidden_size, V = m->config.vocab_size;

	return tr_linear_fwd(m, n, V, C, m->a.n + t0 * C, C, m->weights + m->off.lm_head, C, 0, m->a.logits, V, err);
}

static int tile_backward(struct tr_model *m, int64_t t0, int64_t n, struct tr_error *err)
{
	int64_t C = m->config.hidden_size, V = m->config.vocab_size;

	if (tr_linear_dw(m, n, V, C, m->a.logits, V, m->a.n + t0 * C, C, m->grads + m->off.lm_head, C, err))
		return -1;
	return tr_linear_dx(m, n, V, C, m->a.logits, V, m->weights + m->off.lm_head, C, 0, m->a.dn + t0 * C, C, err);
}

int tr_loss(struct tr_model *m, int train, double grad_scale, int want_nll, double *loss_sum, struct tr_error *err)
{
	int64_t C = m->config.hidden_size, V = m->config.vocab_size;

	if (final_norm(m, err))
		return -1;
	for (int64_t t0 = 0; t0 < m->t; t0 += m->tile) {
		int64_t n = m->t - t0 < m->tile ? m->t - t0 : m->tile;
		double start;

		if (tile_logits(m, t0, n, err))
			return -1;
		start = tr_now();
		if (tr_k(m, err, "cross-entropy",
			 m->ops->xent(m->ctx, n, V, m->a.logits, V, m->a.labels + t0, train ? (float)grad_scale : 0.0f,
				      want_nll ? m->a.nll + t0 : NULL, loss_sum)))
			return -1;
		m->times.loss += tr_now() - start;
		if (train && tile_backward(m, t0, n, err))
			return -1;
	}
	if (!train)
		return 0;
	return tr_k(m, err, "final rmsnorm backward",
		    m->ops->rmsnorm_bwd(m->ctx, KN_F32, m->t, C, m->a.xf, C, m->weights + m->off.norm, m->a.rstdf, m->a.dn,
					C, m->a.dx, C, 0, m->grads + m->off.norm));
}

int tr_head_logits(struct tr_model *m, float *host, struct tr_error *err)
{
	int64_t V = m->config.vocab_size;

	if (final_norm(m, err))
		return -1;
	for (int64_t t0 = 0; t0 < m->t; t0 += m->tile) {
		int64_t n = m->t - t0 < m->tile ? m->t - t0 : m->tile;

		if (tile_logits(m, t0, n, err) ||
		    tr_k(m, err, "copy of logits",
			 m->ops->copy(m->ctx, host + t0 * V, m->a.logits, (size_t)(n * V) * sizeof(float), KN_D2H)) ||
		    tr_k(m, err, "copy of logits", m->ops->sync(m->ctx)))
			return -1;
	}
	return 0;
}
