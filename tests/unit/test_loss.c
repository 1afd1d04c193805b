/* SPDX-License-Identifier: Apache-2.0 */
/* The tiled loss: tile sizes, tied and untied heads, ignored labels, and its value against logits in double. */
#include "tests/unit/model_util.h"

enum { V = 53, T = 41 };

static const struct sp_sizes one = { 1, 1, 1, 1 };

static struct tr_model_config config(int tied)
{
	return (struct tr_model_config){ .model_type = "llama", .hidden_size = 24, .intermediate_size = 40,
					 .num_hidden_layers = 1, .num_attention_heads = 4, .num_key_value_heads = 2,
					 .head_dim = 6, .vocab_size = V, .max_position_embeddings = 64,
					 .rms_norm_eps = 1e-5, .rope_theta = 10000, .initializer_range = 0.02,
					 .tie_word_embeddings = tied, .eos_token_id = -1, .pad_token_id = -1,
					 .bos_token_id = -1 };
}

struct result {
	const struct mu_row *row;
	double scale, loss;
	float nll[T], logits[T * V], *grads;
	int64_t nparams;
	struct tr_param *params;
};

static int body(struct mu_rank *r, void *arg)
{
	struct result *a = arg;
	struct io_batch b = mu_batch(a->row, 1, 0);
	const struct tr_param *p = tr_model_params(r->m, &a->nparams);
	size_t bytes = (size_t)tr_model_total(r->m) * sizeof(float);

	a->params = malloc((size_t)a->nparams * sizeof(*p));
	memcpy(a->params, p, (size_t)a->nparams * sizeof(*p));
	a->grads = malloc(bytes);
	if (tr_model_logits(r->m, &b, a->logits, &r->err) ||
	    tr_model_row(r->m, &b, 1, a->scale, &a->loss, a->nll, &r->err))
		return -1;
	memcpy(a->grads, tr_model_grads(r->m), bytes);
	return 0;
}

static void run(struct result *res, const struct tr_model_config *c, const struct kn_ops *ops, const struct mu_row *row,
		double scale, int64_t tile)
{
	struct mu_job job = { c, ops, tile, 1, body, res };

	memset(res, 0, sizeof(*res));
	res->row = row;
	res->scale = scale;
	mu_run_ok(&job, one);
}

static void release(struct result *r)
{
	free(r->grads);
	free(r->params);
}

static struct mu_row *make_row(void)
{
	static const int64_t lens[] = { 1, 17, 23 };

	return mu_row_new(0, lens, 3, V);
}

/* ---- value ---------------------------------------------------------------------------------------------------------- */

static double token_loss(const float *z, int32_t label)
{
	double max = z[0], sum = 0;

	if (label < 0)
		return 0;
	for (int i = 1; i < V; i++)
		max = fmax(max, z[i]);
	for (int i = 0; i < V; i++)
		sum += exp(z[i] - max);
	return log(sum) + max - z[label];
}

static void test_value(void **state)
{
	struct tr_model_config c = config(0);
	struct mu_row *row = make_row();
	static struct result r;
	double sum = 0;

	(void)state;
	for (int k = 0; k < 2; k++) {
		run(&r, &c, k ? kn_cpu() : kn_ref(), row, 1, 8);
		sum = 0;
		for (int t = 0; t < T; t++) {
			double want = token_loss(r.logits + t * V, row->labels[t]);

			/* one fp32 rounding of nll, fp32 exponentials of 53 terms */
			if (!(fabs(r.nll[t] - want) <= 2e-6 * (1 + want)))
				fail_msg("token %d: %.9g, expected %.9g", t, (double)r.nll[t], want);
			sum += want;
		}
		mu_near("sum", r.loss, sum, 1e-6);
		release(&r);
	}
	mu_row_free(row);
}

/* ---- tiles ---------------------------------------------------------------------------------------------------------- */

/* A tile border changes the order in which the head's gradient is summed (rounding, 1e-6 of its norm) and, on the fast
 * backend, the shape of products and with it the order of their sums. */
static void tiles(const struct kn_ops *ops, int tied)
{
	static const int64_t sizes[] = { 1, 7, 40, T, T + 1, 100000, 0 };
	struct tr_model_config c = config(tied);
	struct mu_row *row = make_row();
	static struct result base, r;

	run(&base, &c, ops, row, 0.25, T);
	assert_true(base.loss > 0);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		char what[64];

		snprintf(what, sizeof(what), "%s, tied %d, tile %d", ops->name, tied, (int)sizes[i]);
		run(&r, &c, ops, row, 0.25, sizes[i]);
		mu_near(what, r.loss, base.loss, 1e-6);
		mu_near_tensors(what, base.params, base.nparams, r.grads, base.grads, 2e-6);
		release(&r);
	}
	release(&base);
	mu_row_free(row);
}

static void test_tiles(void **state)
{
	(void)state;
	tiles(kn_ref(), 0);
	tiles(kn_ref(), 1);
	tiles(kn_cpu(), 0);
	tiles(kn_cpu(), 1);
}

/* ---- tied head -------------------------------------------------------------------------------------------------------- */

/* With an untied head that holds the same numbers, the gradients of both uses add up to the tied one. */
static int tied_body(struct mu_rank *r, void *arg)
{
	struct result *a = arg;
	struct io_batch b = mu_batch(a->row, 1, 0);
	int64_t n;
	const struct tr_param *p = tr_model_params(r->m, &n);
	const struct tr_param *head = tr_params_find(p, n, "lm_head.weight");
	float *w = tr_model_weights(r->m), *g = tr_model_grads(r->m);

	if (head)
		memcpy(w + head->offset, w, (size_t)(V * 24) * sizeof(*w)); /* the embedding comes first */
	if (tr_model_row(r->m, &b, 1, 1, &a->loss, NULL, &r->err))
		return -1;
	a->grads = malloc((size_t)(V * 24) * sizeof(float));
	for (int i = 0; i < V * 24; i++)
		a->grads[i] = g[i] + (head ? g[head->offset + i] : 0);
	return 0;
}

static void test_tied(void **state)
{
	struct mu_row *row = make_row();
	static struct result r[2];

	(void)state;
	for (int k = 0; k < 2; k++) {
		struct tr_model_config c = config(k);
		struct mu_job job = { &c, kn_ref(), 8, 1, tied_body, &r[k] };

		r[k].row = row;
		mu_run_ok(&job, one);
	}
	assert_true(r[0].loss == r[1].loss);
	assert_true(mu_distance(r[0].grads, r[1].grads, V * 24) < 1e-6);
	free(r[0].grads);
	free(r[1].grads);
	mu_row_free(row);
}

/* ---- ignored labels ----------------------------------------------------------------------------------------------------- */

static void test_ignored(void **state)
{
	struct tr_model_config c = config(0);
	struct mu_row *row = make_row();
	static struct result all, some;

	(void)state;
	/* only tokens 20..24 count: tiles of 8 before and after hold nothing */
	for (int t = 0; t < T; t++)
		if (t < 20 || t > 24)
			row->labels[t] = IO_LABEL_IGNORE;
	for (int k = 0; k < 2; k++) {
		run(&some, &c, k ? kn_cpu() : kn_ref(), row, 1, 8);
		run(&all, &c, k ? kn_cpu() : kn_ref(), row, 1, T);
		mu_near("loss", some.loss, all.loss, 1e-6);
		mu_near_tensors("gradient", all.params, all.nparams, some.grads, all.grads, 2e-6);
		for (int t = 0; t < T; t++)
			assert_true((some.nll[t] != 0) == (t >= 20 && t <= 24));
		release(&some);
		release(&all);
	}
	for (int t = 0; t < T; t++)
		row->labels[t] = IO_LABEL_IGNORE;
	for (int k = 0; k < 2; k++) {
		int64_t n = 0;

		run(&all, &c, k ? kn_cpu() : kn_ref(), row, 1, 8);
		assert_true(all.loss == 0);
		for (int64_t i = 0; i < all.nparams; i++)
			n += all.params[i].count;
		for (int64_t i = 0; i < n; i++)
			assert_true(all.grads[i] == 0);
		release(&all);
	}
	mu_row_free(row);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_value),
		cmocka_unit_test(test_tiles),
		cmocka_unit_test(test_tied),
		cmocka_unit_test(test_ignored),
	};

	return cmocka_run_group_tests_name("loss", tests, NULL, NULL);
}
