/* SPDX-License-Identifier: Apache-2.0 */
/* The model's small parts: configuration check, parameter table, initialisation, rotary tables, what a row accepts. */
#include "tests/unit/model_util.h"
#include "trainer/model_priv.h"

static const struct tr_model_config small = {
	.model_type = "llama", .hidden_size = 24, .intermediate_size = 40, .num_hidden_layers = 2, .num_attention_heads = 4,
	.num_key_value_heads = 2, .head_dim = 8, .vocab_size = 37, .max_position_embeddings = 64, .rms_norm_eps = 1e-5,
	.rope_theta = 10000, .initializer_range = 0.02, .eos_token_id = -1, .pad_token_id = -1, .bos_token_id = -1,
};
static const struct sp_sizes one = { 1, 1, 1, 1 };

/* ---- configuration --------------------------------------------------------------------------------------------- */

static void refused(struct tr_model_config c, const char *part)
{
	struct tr_error err = { 0 };

	assert_int_equal(tr_model_config_check(&c, &err), -1);
	assert_int_equal(err.exit_code, TR_EXIT_USAGE);
	if (!strstr(err.text, part) || strchr(err.text, '\n'))
		fail_msg("error \"%s\" lacks \"%s\"", err.text, part);
}
#define REFUSED(field, value, part)                     \
	do {                                            \
		struct tr_model_config bad_ = small;    \
		bad_.field = value;                     \
		refused(bad_, part);                    \
	} while (0)

static void test_config(void **state)
{
	struct tr_model_config c = small;
	struct tr_error err = { 0 };

	(void)state;
	assert_int_equal(tr_model_config_check(&c, &err), 0);
	strcpy(c.model_type, "gpt2");
	refused(c, "model.model_type is \"gpt2\"; allowed: llama");
	REFUSED(hidden_size, 0, "model.hidden_size is 0");
	REFUSED(hidden_size, -5, "model.hidden_size is -5");
	REFUSED(intermediate_size, 0, "model.intermediate_size is 0");
	REFUSED(num_hidden_layers, 0, "model.num_hidden_layers is 0");
	REFUSED(num_attention_heads, 0, "model.num_attention_heads is 0");
	REFUSED(num_key_value_heads, 5, "model.num_key_value_heads is 5; allowed: 1 to 4");
	REFUSED(num_key_value_heads, 3, "must divide num_attention_heads, 4");
	REFUSED(head_dim, 7, "must be even");
	REFUSED(head_dim, 258, "model.head_dim is 258; allowed: 2 to 256");
	REFUSED(vocab_size, (int64_t)1 << 31, "model.vocab_size is 2147483648");
	REFUSED(max_position_embeddings, 0, "model.max_position_embeddings is 0");
	REFUSED(max_position_embeddings, (1 << 24) + 1, "model.max_position_embeddings is 16777217");
	REFUSED(rms_norm_eps, 0, "model.rms_norm_eps is 0");
	REFUSED(rms_norm_eps, NAN, "model.rms_norm_eps is nan");
	REFUSED(rope_theta, 0.5, "model.rope_theta is 0.5");
	REFUSED(rope_theta, INFINITY, "model.rope_theta is inf");
	REFUSED(initializer_range, -1, "model.initializer_range is -1");
	REFUSED(tie_word_embeddings, 2, "model.tie_word_embeddings is 2");
	REFUSED(eos_token_id, 37, "model.eos_token_id is 37; allowed: -1 to 36");
	c = small;
	c.hidden_size = 1 << 20;
	c.intermediate_size = 1 << 24;
	c.num_hidden_layers = 100000;
	refused(c, "parameters; allowed: at most");
}

/* ---- table --------------------------------------------------------------------------------------------------------- */

static void check_table(int tied, int bias, int64_t expect_n, int64_t expect_total)
{
	struct tr_model_config c = small;
	struct tr_param *p = NULL;
	struct tr_offsets off = { 0 };
	struct tr_error err = { 0 };
	int64_t n, total, at = 0;

	c.tie_word_embeddings = tied;
	c.attention_bias = bias;
	assert_int_equal(tr_params_build(&c, &p, &n, &total, &err), 0);
	assert_int_equal(n, expect_n);
	assert_int_equal(total, expect_total);
	for (int64_t i = 0; i < n; i++) {
		assert_int_equal(p[i].offset, at);
		assert_int_equal(p[i].count, p[i].dims[0] * (p[i].ndim == 2 ? p[i].dims[1] : 1));
		assert_int_equal(p[i].decay, p[i].ndim == 2); /* norms and biases are the vectors */
		at += p[i].count;
	}
	assert_int_equal(at, total);
	assert_int_equal(tr_offsets_build(&c, p, n, &off, &err), 0);
	assert_int_equal(off.layer[1].wq, tr_params_find(p, n, "model.layers.1.self_attn.q_proj.weight")->offset);
	assert_int_equal(off.layer[1].wo, tr_params_find(p, n, "model.layers.1.self_attn.o_proj.weight")->offset);
	assert_int_equal(off.layer[1].wd, tr_params_find(p, n, "model.layers.1.mlp.down_proj.weight")->offset);
	assert_int_equal(off.layer[0].ln2, tr_params_find(p, n, "model.layers.0.post_attention_layernorm.weight")->offset);
	/* one product for gate and up */
	assert_int_equal(off.layer[0].wgu, tr_params_find(p, n, "model.layers.0.mlp.gate_proj.weight")->offset);
	assert_int_equal(off.layer[0].wgu + 40 * 24, tr_params_find(p, n, "model.layers.0.mlp.up_proj.weight")->offset);
	assert_int_equal(off.norm, tr_params_find(p, n, "model.norm.weight")->offset);
	assert_int_equal(off.layer[0].bo >= 0, bias);
	if (bias)
		assert_int_equal(off.layer[1].bv, tr_params_find(p, n, "model.layers.1.self_attn.v_proj.bias")->offset);
	if (tied) {
		assert_null(tr_params_find(p, n, "lm_head.weight"));
		assert_int_equal(off.lm_head, off.embed);
	} else {
		assert_int_equal(off.lm_head, tr_params_find(p, n, "lm_head.weight")->offset);
	}
	free(off.layer);
	free(p);
}

static void test_table(void **state)
{
	/* V*C = 888; layer: 24 + (32 + 16 + 16 + 32)*24 + 24 + 3*40*24 = 5232; biases 32 + 16 + 16 + 24 = 88 */
	(void)state;
	check_table(0, 0, 21, 2 * 888 + 2 * 5232 + 24);
	check_table(1, 0, 20, 888 + 2 * 5232 + 24);
	check_table(0, 1, 29, 2 * 888 + 2 * (5232 + 88) + 24);
	check_table(1, 1, 28, 888 + 2 * (5232 + 88) + 24);
}

/* ---- initialisation ---------------------------------------------------------------------------------------------------- */

static void test_philox(void **state)
{
	/* Random123's known answers for philox4x32-10; counter words x0 x1 in lo, x2 x3 in hi, key words in seed */
	static const uint32_t zero[4] = { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 };
	static const uint32_t ones[4] = { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd };
	static const uint32_t pi[4] = { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 };
	uint32_t x[4];

	(void)state;
	tr_philox(0, 0, 0, x);
	assert_memory_equal(x, zero, sizeof(x));
	tr_philox(~0ull, ~0ull, ~0ull, x);
	assert_memory_equal(x, ones, sizeof(x));
	tr_philox(0x299f31d0a4093822u, 0x0370734413198a2eu, 0x85a308d3243f6a88u, x);
	assert_memory_equal(x, pi, sizeof(x));
}

static void test_normal(void **state)
{
	enum { N = 200000 };
	float *a = malloc(N * sizeof(*a)), *b = malloc(N * sizeof(*b));
	double mean = 0, var = 0, m4 = 0;
	int tails = 0;

	(void)state;
	tr_init_normal(7, "x.weight", 0.5, 0, N, a);
	for (int64_t at = 0, n = 1; at < N; at += n, n = n * 3 % 1009 + 1) { /* any pieces, odd borders too */
		n = n < N - at ? n : N - at;
		tr_init_normal(7, "x.weight", 0.5, at, n, b + at);
	}
	assert_memory_equal(a, b, N * sizeof(*a));
	for (int i = 0; i < N; i++) {
		double z = a[i] / 0.5;

		mean += z / N;
		var += z * z / N;
		m4 += z * z * z * z / N;
		tails += fabs(z) > 3;
	}
	/* four standard errors of each: 1/sqrt(N), sqrt(2/N), sqrt(96/N); tails: N * 0.0027 = 540 +- 4 * 23 */
	assert_true(fabs(mean) < 0.009 && fabs(var - 1) < 0.0127 && fabs(m4 - 3) < 0.088);
	assert_in_range(tails, 447, 633);
	tr_init_normal(8, "x.weight", 0.5, 0, N, b);
	assert_memory_not_equal(a, b, N * sizeof(*a));
	tr_init_normal(7, "y.weight", 0.5, 0, N, b);
	assert_memory_not_equal(a, b, N * sizeof(*a));
	free(a);
	free(b);
}

static int init_body(struct mu_rank *r, void *arg)
{
	float want[100];
	int64_t n;
	const struct tr_param *p = tr_model_params(r->m, &n);

	(void)arg;
	if (tr_model_init(r->m, 42, &r->err))
		return -1;
	for (int64_t k = 0; k < n; k++) {
		const float *w = tr_model_weights(r->m) + p[k].offset;

		tr_init_normal(42, p[k].name, 0.02, p[k].count - 10, 10, want);
		for (int i = 0; i < 10; i++) {
			float x = w[p[k].count - 10 + i];

			if (p[k].ndim == 2 ? x != want[i] : x != (strstr(p[k].name, ".bias") ? 0.0f : 1.0f))
				return tr_errorf(&r->err, 1, "%s: element %d from the end is %g", p[k].name, 10 - i, (double)x);
		}
	}
	return 0;
}

static void test_init(void **state)
{
	struct tr_model_config c = small;
	struct mu_job job = { &c, kn_ref(), 0, 1, init_body, NULL };

	(void)state;
	c.attention_bias = 1;
	mu_run_ok(&job, one);
}

/* ---- rotary tables ------------------------------------------------------------------------------------------------------- */

static void test_rope_table(void **state)
{
	/* Against the exact angle: rounding of inv_freq (3 roundings, 2^-24 each) and of the angle (1 more), relative, times
	 * the angle, plus half an ulp of the result. Split tables equal whole ones. */
	enum { D = 16, N = 3000 };
	float *c = malloc(N * D / 2 * sizeof(*c)), *s = malloc(N * D / 2 * sizeof(*s)), c1[D / 2], s1[D / 2];

	(void)state;
	tr_rope_table(500000, D, 0, N, c, s);
	for (int p = 0; p < N; p++)
		for (int i = 0; i < D / 2; i++) {
			double a = p * pow(500000, -2.0 * i / D), tol = a * 4 * 0x1p-24 + 0x1p-24;

			assert_true(fabs(c[p * (D / 2) + i] - cos(a)) <= tol);
			assert_true(fabs(s[p * (D / 2) + i] - sin(a)) <= tol);
		}
	tr_rope_table(500000, D, 1234, 1, c1, s1);
	assert_memory_equal(c1, c + 1234 * D / 2, sizeof(c1));
	assert_memory_equal(s1, s + 1234 * D / 2, sizeof(s1));
	free(c);
	free(s);
}

/* ---- rows ------------------------------------------------------------------------------------------------------------------- */

struct row_arg {
	struct io_batch b;
	double scale;
};
static int row_body(struct mu_rank *r, void *arg)
{
	struct row_arg *a = arg;
	double loss = 0;

	return tr_model_row(r->m, &a->b, 1, a->scale, &loss, NULL, &r->err);
}

static void row_refused(struct row_arg a, int code, const char *part)
{
	struct mu_job job = { &small, kn_ref(), 0, 1, row_body, &a };
	struct tr_error err = { 0 };

	assert_int_equal(mu_run(&job, one, &err), -1);
	if (err.exit_code != code || !strstr(err.text, part) || strchr(err.text, '\n'))
		fail_msg("exit code %d, \"%s\"; expected %d, \"%s\"", err.exit_code, err.text, code, part);
}

static void test_bad_rows(void **state)
{
	const int64_t lens[] = { 5, 7, 4 }, too_long[] = { 65 };
	struct mu_row *r = mu_row_new(0, lens, 3, 37), *l = mu_row_new(0, too_long, 1, 37);
	struct row_arg ok = { mu_batch(r, 1, 0), 1 }, a;
	int64_t cu[] = { 0, 5, 5, 16 };

	(void)state;
	a = (struct row_arg){ mu_batch(l, 1, 0), 1 };
	row_refused(a, TR_EXIT_DATA, "has 65 tokens, more than max_position_embeddings 64");
	a = ok;
	a.b.cu = cu;
	row_refused(a, TR_EXIT_DATA, "document 1 of the row has 0 tokens");
	a = ok;
	a.b.ndoc = 2;
	row_refused(a, TR_EXIT_DATA, "do not span");
	a = ok;
	a.b.t1--;
	row_refused(a, TR_EXIT_FAIL, "its part is 0 to 16");
	a = ok;
	a.scale = INFINITY;
	row_refused(a, TR_EXIT_FAIL, "grad_scale is inf");
	r->ids[3] = 37;
	row_refused(ok, TR_EXIT_DATA, "token 3 of the row is 37");
	r->ids[3] = 0;
	r->labels[2] = 40;
	row_refused(ok, TR_EXIT_DATA, "with label 40; vocab_size is 37");
	r->labels[2] = 0;
	r->pos[4] = -1;
	row_refused(ok, TR_EXIT_DATA, "position -1");
	mu_row_free(r);
	mu_row_free(l);
}

/* Evaluation leaves gradients alone and gives the loss of training; buffers grow for longer rows only; two rows add. */
static int behaviour_body(struct mu_rank *r, void *arg)
{
	const int64_t la[] = { 9, 20 }, lb[] = { 3, 8, 4 };
	struct mu_row *ra = mu_row_new(0, la, 2, 37), *rb = mu_row_new(1, lb, 3, 37);
	struct io_batch a = mu_batch(ra, 1, 0), b = mu_batch(rb, 1, 0);
	int64_t n = tr_model_total(r->m), w, g, act, act2;
	float *ga = calloc((size_t)n, sizeof(*ga)), *grads = tr_model_grads(r->m), nll[29];
	double eval = 0, train = 0, zero = 0, sum = 0, d = 0;
	struct tr_model_times times;
	int rc = -1;

	(void)arg;
	if (tr_model_row(r->m, &a, 0, 1, &eval, nll, &r->err) || tr_model_row(r->m, &a, 1, 0, &zero, NULL, &r->err))
		goto out;
	for (int64_t i = 0; i < n; i++)
		d += fabs((double)grads[i]);
	for (int i = 0; i < 29; i++)
		sum += nll[i];
	if (d != 0 || nll[8] != 0 || nll[28] != 0 || fabs(sum - eval) > 1e-6 * eval || zero != eval) {
		tr_errorf(&r->err, 1, "evaluation: gradients %g, nll %g, loss %g, zero scale %g", d, sum, eval, zero);
		goto out;
	}
	tr_model_memory(r->m, &w, &g, &act);
	if (tr_model_row(r->m, &a, 1, 0.5, &train, NULL, &r->err))
		goto out;
	memcpy(ga, grads, (size_t)n * sizeof(*ga));
	memset(grads, 0, (size_t)n * sizeof(*grads));
	if (tr_model_row(r->m, &b, 1, 0.5, &train, NULL, &r->err))
		goto out;
	for (int64_t i = 0; i < n; i++)
		ga[i] += grads[i];
	memset(grads, 0, (size_t)n * sizeof(*grads));
	if (tr_model_row(r->m, &b, 1, 0.5, &train, NULL, &r->err) || tr_model_row(r->m, &a, 1, 0.5, &train, NULL, &r->err))
		goto out;
	tr_model_memory(r->m, &w, &g, &act2);
	tr_model_times(r->m, &times);
	d = mu_distance(grads, ga, n); /* another order of fp32 sums: a few ulp */
	if (!(d < 1e-6) || act != act2 || w != 4 * n || g != 4 * n || !(times.gemm > 0) || !(times.other > 0))
		tr_errorf(&r->err, 1, "sum of rows differs by %g; memory %lld then %lld", d, (long long)act, (long long)act2);
	else
		rc = 0;
out:
	mu_row_free(ra);
	mu_row_free(rb);
	free(ga);
	return rc;
}

static void test_behaviour(void **state)
{
	struct mu_job job = { &small, kn_cpu(), 0, 1, behaviour_body, NULL };

	(void)state;
	mu_run_ok(&job, one);
	job.ops = kn_ref();
	mu_run_ok(&job, one);
}

static int flops_body(struct mu_rank *r, void *arg)
{
	const int64_t cu[] = { 0, 2, 5 };
	/* products: 2 layers of (96*24 + 3*24*40) and 37*24 weights, 6 flops a token each; pairs 3 + 6, 12 flops, 32 wide */
	double want = 6.0 * 5 * (2 * (96 * 24 + 3 * 24 * 40) + 37 * 24) + 12.0 * 9 * 32 * 2;

	(void)arg;
	return tr_model_flops(r->m, 5, cu, 2) == want ? 0 : tr_errorf(&r->err, 1, "flops differ from %g", want);
}

static void test_flops(void **state)
{
	struct mu_job job = { &small, kn_ref(), 0, 1, flops_body, NULL };

	(void)state;
	mu_run_ok(&job, one);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_config),	  cmocka_unit_test(test_table),	    cmocka_unit_test(test_philox),
		cmocka_unit_test(test_normal),	  cmocka_unit_test(test_init),	    cmocka_unit_test(test_rope_table),
		cmocka_unit_test(test_bad_rows), cmocka_unit_test(test_behaviour), cmocka_unit_test(test_flops),
	};

	return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
