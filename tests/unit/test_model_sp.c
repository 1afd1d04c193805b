/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers do not depend on how many ranks share a row; documents of a pack do not see each other. */
#include "tests/unit/model_util.h"

static struct tr_model_config config(int hq, int hkv)
{
	return (struct tr_model_config){ .model_type = "llama", .hidden_size = 36, .intermediate_size = 56,
					 .num_hidden_layers = 2, .num_attention_heads = hq, .num_key_value_heads = hkv,
					 .head_dim = 8, .vocab_size = 53, .max_position_embeddings = 512,
					 .rms_norm_eps = 1e-5, .rope_theta = 10000, .initializer_range = 0.02,
					 .attention_bias = 1, .eos_token_id = -1, .pad_token_id = -1,
					 .bos_token_id = -1 };
}

/* ---- sp invariance ------------------------------------------------------------------------------------------------ */

struct result {
	const struct mu_row *row;
	double loss;
	float *grads, *nll; /* [total], [tokens] */
	int64_t total, nparams;
	struct tr_param *params;
};

static int row_body(struct mu_rank *r, void *arg)
{
	struct result *a = arg;
	struct sp_comm *sp = sp_mesh_comm(r->mesh, SP_GROUP_SP);
	struct io_batch b = mu_batch(a->row, r->info.sizes.sp, r->info.coord.sp);
	const struct tr_param *p;
	struct sp_error se = { 0 };
	double loss = 0;

	if (tr_model_row(r->m, &b, 1, 1.0 / (double)a->row->targets, &loss, a->nll + b.t0, &r->err))
		return -1;
	if (sp_comm_host_sum(sp, &loss, 1, &se) ||
	    sp_comm_all_reduce(sp, tr_model_grads(r->m), tr_model_total(r->m), &se))
		return tr_error_sp(&r->err, &se);
	if (r->info.coord.sp)
		return 0;
	a->loss = loss / (double)a->row->targets;
	a->total = tr_model_total(r->m);
	p = tr_model_params(r->m, &a->nparams);
	a->params = malloc((size_t)a->nparams * sizeof(*p));
	memcpy(a->params, p, (size_t)a->nparams * sizeof(*p));
	a->grads = malloc((size_t)a->total * sizeof(float));
	memcpy(a->grads, tr_model_grads(r->m), (size_t)a->total * sizeof(float));
	return 0;
}

static struct result run_row(const struct tr_model_config *c, const struct kn_ops *ops, const struct mu_row *row, int sp)
{
	struct result res = { .row = row, .nll = calloc((size_t)row->tokens, sizeof(float)) };
	struct mu_job job = { c, ops, 64, 1, row_body, &res };

	mu_run_ok(&job, (struct sp_sizes){ sp, 1, 1, 1 });
	return res;
}

static void result_free(struct result *r)
{
	free(r->grads);
	free(r->nll);
	free(r->params);
}

/* Rounding differs by the order of sums over sp's columns of Wo, of the partial dK, dV and of the ranks' gradients: a few
 * 1e-7 of a tensor's norm; allowed as the design promises, 1e-6 on the loss and 1e-5 on every tensor. */
static void compare(const struct tr_model_config *c, const struct kn_ops *ops, const struct mu_row *row, int sp_max)
{
	struct result base = run_row(c, ops, row, 1);

	for (int sp = 2; sp <= sp_max; sp++) {
		struct result r = run_row(c, ops, row, sp);
		char what[128];

		snprintf(what, sizeof(what), "%s, %d/%d heads, %d tokens, sp %d", ops->name, (int)c->num_attention_heads,
			 (int)c->num_key_value_heads, (int)row->tokens, sp);
		mu_near(what, r.loss, base.loss, 1e-6);
		mu_near_tensors(what, base.params, base.nparams, r.grads, base.grads, 1e-5);
		if (!(mu_distance(r.nll, base.nll, row->tokens) <= 1e-6))
			fail_msg("%s: losses of single tokens differ by %.3g of their norm", what,
				 mu_distance(r.nll, base.nll, row->tokens));
		result_free(&r);
	}
	result_free(&base);
}

static void test_sp(void **state)
{
	static const int heads[][2] = { { 4, 2 }, { 6, 3 }, { 5, 1 } };
	static const int64_t l256[] = { 100, 1, 155 }, l257[] = { 257 }, l3[] = { 3 };
	static const struct {
		const int64_t *lens;
		int64_t n;
	} rows[] = { { l256, 3 }, { l257, 1 }, { l3, 1 } };

	(void)state;
	for (size_t h = 0; h < 3; h++) {
		struct tr_model_config c = config(heads[h][0], heads[h][1]);

		c.tie_word_embeddings = h == 1;
		for (size_t i = 0; i < 3; i++) {
			struct mu_row *row = mu_row_new((int)i, rows[i].lens, rows[i].n, c.vocab_size);

			compare(&c, kn_cpu(), row, 4);
			mu_row_free(row);
		}
	}
}

/* The oracle, and as many ranks as heads: single heads each, one kv head sent to all. */
static void test_sp_oracle(void **state)
{
	static const int64_t lens[] = { 7, 1, 12, 3 };
	struct tr_model_config c = config(5, 1);
	struct mu_row *row = mu_row_new(4, lens, 4, c.vocab_size);

	(void)state;
	compare(&c, kn_ref(), row, 5);
	mu_row_free(row);
}

static void test_same_bits(void **state)
{
	static const int64_t lens[] = { 100, 57 };
	struct tr_model_config c = config(6, 3);
	struct mu_row *row = mu_row_new(5, lens, 2, c.vocab_size);
	struct result a, b;

	(void)state;
	for (int sp = 1; sp <= 4; sp += 3) {
		a = run_row(&c, kn_cpu(), row, sp);
		b = run_row(&c, kn_cpu(), row, sp);
		assert_true(a.loss == b.loss);
		assert_memory_equal(a.grads, b.grads, (size_t)a.total * sizeof(float));
		assert_memory_equal(a.nll, b.nll, (size_t)row->tokens * sizeof(float));
		result_free(&a);
		result_free(&b);
	}
	mu_row_free(row);
}

/* More ranks than heads: refused with the largest size that works, on every rank. */
static void test_too_many(void **state)
{
	static const int64_t lens[] = { 8 };
	struct tr_model_config c = config(4, 2);
	struct mu_row *row = mu_row_new(6, lens, 1, c.vocab_size);
	struct result res = { .row = row, .nll = calloc(8, sizeof(float)) };
	struct mu_job job = { &c, kn_ref(), 0, 1, row_body, &res };
	struct tr_error err = { 0 };

	(void)state;
	assert_int_equal(mu_run(&job, (struct sp_sizes){ 5, 1, 1, 1 }, &err), -1);
	assert_int_equal(err.exit_code, TR_EXIT_USAGE);
	assert_non_null(strstr(err.text, "4"));
	result_free(&res);
	mu_row_free(row);
}

/* ---- documents ------------------------------------------------------------------------------------------------------- */

struct logits_arg {
	const struct mu_row *row;
	int64_t vocab;
	float *logits;
};
static int logits_body(struct mu_rank *r, void *arg)
{
	struct logits_arg *a = arg;
	struct io_batch b = mu_batch(a->row, r->info.sizes.sp, r->info.coord.sp);

	return tr_model_logits(r->m, &b, a->logits + b.t0 * a->vocab, &r->err);
}

static float *logits_of(const struct tr_model_config *c, const struct kn_ops *ops, const struct mu_row *row, int sp)
{
	struct logits_arg a = { row, c->vocab_size, calloc((size_t)(row->tokens * c->vocab_size), sizeof(float)) };
	struct mu_job job = { c, ops, 0, 1, logits_body, &a };

	mu_run_ok(&job, (struct sp_sizes){ sp, 1, 1, 1 });
	return a.logits;
}

/* The same bits for a document whose neighbours hold other tokens; the same numbers when it is alone in the row (other borders of
 * tiles, hence rounding: 2e-6 of the norm). */
static void isolation(const struct kn_ops *ops, int sp)
{
	static const int64_t lens[] = { 70, 90, 40 }, alone[] = { 90 };
	struct tr_model_config c = config(4, 2);
	int64_t V = c.vocab_size;
	struct mu_row *row = mu_row_new(7, lens, 3, V), *single = mu_row_new(7, alone, 1, V);
	float *before = logits_of(&c, ops, row, sp), *after, *own;

	memcpy(single->ids, row->ids + 70, 90 * sizeof(*row->ids));
	mu_row_label(single);
	for (int64_t t = 0; t < row->tokens; t++)
		if (t < 70 || t >= 160)
			row->ids[t] = (row->ids[t] + 1 + (uint32_t)t % 50) % (uint32_t)V;
	mu_row_label(row);
	after = logits_of(&c, ops, row, sp);
	own = logits_of(&c, ops, single, sp);
	assert_memory_equal(before + 70 * V, after + 70 * V, (size_t)(90 * V) * sizeof(float));
	assert_memory_not_equal(before, after, (size_t)(70 * V) * sizeof(float));
	assert_memory_not_equal(before + 160 * V, after + 160 * V, (size_t)(40 * V) * sizeof(float));
	if (!(mu_distance(own, before + 70 * V, 90 * V) <= 2e-6))
		fail_msg("%s, sp %d: logits of a document alone differ by %.3g of their norm", ops->name, sp,
			 mu_distance(own, before + 70 * V, 90 * V));
	free(before);
	free(after);
	free(own);
	mu_row_free(row);
	mu_row_free(single);
}

static void test_isolation(void **state)
{
	(void)state;
	isolation(kn_cpu(), 1);
	isolation(kn_cpu(), 3);
	isolation(kn_ref(), 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sp),	 cmocka_unit_test(test_sp_oracle), cmocka_unit_test(test_same_bits),
		cmocka_unit_test(test_too_many), cmocka_unit_test(test_isolation),
	};

	return cmocka_run_group_tests_name("model_sp", tests, NULL, NULL);
}
