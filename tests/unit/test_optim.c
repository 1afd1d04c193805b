/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW over ZeRO shards: against PyTorch over ten steps on every mesh, clipping, decay, norms that are not finite. */
#include "tests/unit/golden_util.h"

enum { STEPS = 10 };

static const struct tr_model_config small = {
	.model_type = "llama", .hidden_size = 24, .intermediate_size = 40, .num_hidden_layers = 1, .num_attention_heads = 4,
	.num_key_value_heads = 2, .head_dim = 8, .vocab_size = 37, .max_position_embeddings = 64, .rms_norm_eps = 1e-5,
	.rope_theta = 10000, .initializer_range = 0.02, .attention_bias = 1, .eos_token_id = -1, .pad_token_id = -1,
	.bos_token_id = -1,
};

/* Are the weights of all ranks the same bits? */
static int weights_agree(struct mu_rank *r)
{
	struct sp_comm *world = sp_mesh_comm(r->mesh, SP_GROUP_WORLD);
	int n = sp_comm_size(world);
	uint64_t h = 0xcbf29ce484222325u, *all = calloc((size_t)n, sizeof(*all));
	const unsigned char *w = (const unsigned char *)tr_model_weights(r->m);
	struct sp_error se = { 0 };
	int rc = 0;

	for (int64_t i = 0; i < tr_model_total(r->m) * 4; i++)
		h = (h ^ w[i]) * 0x100000001b3u;
	if (sp_comm_host_gather(world, &h, sizeof(h), all, &se))
		rc = tr_error_sp(&r->err, &se);
	for (int i = 0; i < n && !rc; i++)
		if (all[i] != h)
			rc = tr_errorf(&r->err, 1, "rank %d holds other weights than rank %d", i, sp_comm_rank(world));
	free(all);
	return rc;
}

/* ---- ten steps against PyTorch --------------------------------------------------------------------------------- */

struct run {
	const struct golden *g;
	int64_t vocab;
	struct tr_optim_opts opts;
	double lr;
	/* of rank 0 */
	double loss[STEPS], norm[STEPS];
	float *weights;
	int64_t nparams, total;
	struct tr_param *params;
};

/* The step's two rows: both on each data-parallel rank when there is one, else one each. */
static int train_step(struct mu_rank *r, struct run *a, struct tr_optim *o, struct mu_row **rows, int s, double *loss,
		      double *norm)
{
	int dp = r->info.sizes.dp_shard * r->info.sizes.dp_replicate;
	int me = r->info.coord.dp_replicate * r->info.sizes.dp_shard + r->info.coord.dp_shard;
	struct sp_error se = { 0 };
	int64_t targets = 0;

	*loss = 0;
	for (int k = 0; k < 2; k++)
		targets += rows[(s + k) % GOLDEN_ROWS]->targets;
	memset(tr_model_grads(r->m), 0, (size_t)tr_model_total(r->m) * sizeof(float));
	for (int k = 0; k < 2; k++) {
		struct io_batch b = mu_batch(rows[(s + k) % GOLDEN_ROWS], r->info.sizes.sp, r->info.coord.sp);

		if (k % dp == me && tr_model_row(r->m, &b, 1, 1.0 / (double)targets, loss, NULL, &r->err))
			return -1;
	}
	*loss /= (double)targets;
	if (sp_comm_host_sum(sp_mesh_comm(r->mesh, SP_GROUP_WORLD), loss, 1, &se))
		return tr_error_sp(&r->err, &se);
	return tr_optim_step(o, s + 1, a->lr, norm, &r->err);
}

static int train_body(struct mu_rank *r, void *arg)
{
	struct run *a = arg;
	struct tr_optim *o = NULL;
	struct mu_row *rows[GOLDEN_ROWS];
	size_t bytes = (size_t)tr_model_total(r->m) * sizeof(float);
	double loss, norm;
	int rc = -1;

	for (int i = 0; i < GOLDEN_ROWS; i++)
		rows[i] = golden_row(a->g, i, a->vocab);
	if (tr_optim_create(r->m, r->mesh, r->ops, r->ctx, &a->opts, &o, &r->err))
		goto out;
	for (int s = 0; s < STEPS; s++) {
		if (train_step(r, a, o, rows, s, &loss, &norm) || weights_agree(r))
			goto out;
		if (r->info.coord.slot == 0) {
			a->loss[s] = loss;
			a->norm[s] = norm;
		}
	}
	if (r->info.coord.slot == 0) {
		const struct tr_param *p = tr_model_params(r->m, &a->nparams);

		a->total = tr_model_total(r->m);
		a->weights = malloc(bytes);
		memcpy(a->weights, tr_model_weights(r->m), bytes);
		a->params = malloc((size_t)a->nparams * sizeof(*p));
		memcpy(a->params, p, (size_t)a->nparams * sizeof(*p));
	}
	rc = 0;
out:
	tr_optim_destroy(o);
	for (int i = 0; i < GOLDEN_ROWS; i++)
		mu_row_free(rows[i]);
	return rc;
}

static struct run golden_run(const struct golden *g, json_t *spec, const struct kn_ops *ops, struct sp_sizes sizes)
{
	struct tr_model_config c = golden_config(golden_at(spec, "config"));
	json_t *o = golden_at(g->doc, "optimizer");
	struct run a = { .g = g, .vocab = c.vocab_size, .lr = golden_real(o, "learning_rate") };
	struct mu_job job = { &c, ops, 0, 1, train_body, &a };

	a.opts = (struct tr_optim_opts){ golden_real(o, "beta1"), golden_real(o, "beta2"), golden_real(o, "eps"),
					 golden_real(o, "weight_decay"), golden_real(o, "max_grad_norm") };
	mu_run_ok(&job, sizes);
	return a;
}

/* Losses and norms: fp32 on PyTorch's side, whose norm is an fp32 sum: 2e-6. Weights after ten steps: AdamW divides by the
 * gradient's own size, so where an element's gradient is small against its rounding error that error moves the weight in full.
 * Over a tensor this stays below 1e-5 of the norm but for one: softmax does not see a bias of k on the dimensions that hardly
 * turn, its true gradient there is next to nothing, and PyTorch and we step on different rounding: 5e-4. */
static void check(const struct golden *g, const char *name, json_t *spec, const struct kn_ops *ops, struct sp_sizes z)
{
	struct run a = golden_run(g, spec, ops, z);
	float *want = golden_flat(g, name, "final", a.params, a.nparams, a.total);
	char what[160];

	for (int s = 0; s < STEPS; s++) {
		snprintf(what, sizeof(what), "%s, %s, sp %d dp_shard %d dp_replicate %d, step %d", name, ops->name, z.sp,
			 z.dp_shard, z.dp_replicate, s + 1);
		mu_near(what, a.loss[s], json_number_value(json_array_get(golden_at(spec, "losses"), (size_t)s)), 2e-6);
		mu_near(what, a.norm[s], json_number_value(json_array_get(golden_at(spec, "grad_norms"), (size_t)s)), 2e-6);
	}
	for (int64_t k = 0; k < a.nparams; k++)
		mu_near_tensors(what, &a.params[k], 1, a.weights, want, strstr(a.params[k].name, "k_proj.bias") ? 5e-4 : 1e-5);
	free(want);
	free(a.weights);
	free(a.params);
}

static void test_golden(void **state)
{
	static const struct sp_sizes meshes[] = { /* sp, cp, dp_shard, dp_replicate */
		{ 1, 1, 1, 1 }, { 2, 1, 1, 1 }, { 3, 1, 1, 1 }, { 1, 1, 2, 1 }, { 1, 1, 1, 2 }, { 2, 1, 2, 1 }, { 2, 1, 1, 2 },
	};
	struct golden g = golden_open();
	const char *name;
	json_t *spec;

	(void)state;
	json_object_foreach(golden_at(g.doc, "cases"), name, spec) {
		check(&g, name, spec, kn_ref(), meshes[0]);
		for (size_t i = 0; i < sizeof(meshes) / sizeof(*meshes); i++)
			check(&g, name, spec, kn_cpu(), meshes[i]);
	}
	golden_close(&g);
}

static void test_same_bits(void **state)
{
	struct golden g = golden_open();
	json_t *spec = golden_at(golden_at(g.doc, "cases"), "h5_1_bias");
	struct sp_sizes z = { 2, 1, 2, 1 };
	struct run a = golden_run(&g, spec, kn_cpu(), z), b = golden_run(&g, spec, kn_cpu(), z);

	(void)state;
	assert_memory_equal(a.loss, b.loss, sizeof(a.loss));
	assert_memory_equal(a.norm, b.norm, sizeof(a.norm));
	assert_memory_equal(a.weights, b.weights, (size_t)a.total * sizeof(float));
	free(a.weights);
	free(a.params);
	free(b.weights);
	free(b.params);
	golden_close(&g);
}

/* ---- single steps on given gradients ---------------------------------------------------------------------------- */

struct step_arg {
	struct tr_optim_opts opts;
	double lr, poison; /* poison: written to one element of one rank's gradient */
	int bad_rank;
};

/* Gradient of the step: rank i of the world contributes (i + 1) / sum of ranks of a formula, so that the sum is known. */
static float want_grad(int64_t i) { return (float)((double)((mu_stream("g", i) >> 40) % 2001) - 1000) * 0x1p-10f; }

static void set_grads(struct mu_rank *r)
{
	int n = r->info.world, me = r->info.coord.slot;

	for (int64_t i = 0; i < tr_model_total(r->m); i++)
		tr_model_grads(r->m)[i] = n == 1 ? want_grad(i) : (me == 0 ? 2 * want_grad(i) : -want_grad(i) / (float)(n - 1));
}

/* First step: m = 0.1 g', v = 0.01 g'^2 on the own range, which tiles the space; g' = g * min(1, max / (norm + 1e-6)). */
static int moments_body(struct mu_rank *r, void *arg)
{
	struct step_arg *a = arg;
	struct sp_comm *shard = sp_mesh_comm(r->mesh, SP_GROUP_SHARD);
	int64_t total = tr_model_total(r->m), begin, end, b, e;
	double norm, want = 0, coef;
	struct tr_optim *o = NULL;
	float *m, *v;
	int rc = -1;

	for (int64_t i = 0; i < total; i++)
		want += (double)want_grad(i) * want_grad(i);
	want = sqrt(want);
	coef = a->opts.max_grad_norm > 0 ? fmin(1, a->opts.max_grad_norm / (want + 1e-6)) : 1;
	if (tr_optim_create(r->m, r->mesh, r->ops, r->ctx, &a->opts, &o, &r->err))
		goto out;
	set_grads(r);
	if (tr_optim_step(o, 1, a->lr, &norm, &r->err) || weights_agree(r))
		goto out;
	tr_optim_state(o, &begin, &end, &m, &v);
	sp_split(total, sp_comm_size(shard), sp_comm_rank(shard), &b, &e);
	if (b != begin || e != end || fabs(norm - want) > 1e-6 * want) {
		tr_errorf(&r->err, 1, "range %lld to %lld, norm %.9g; expected %lld to %lld, %.9g", (long long)begin,
			  (long long)end, norm, (long long)b, (long long)e, want);
		goto out;
	}
	for (int64_t i = 0; i < end - begin; i++) {
		double g = want_grad(begin + i) * coef, wm = 0.1 * g, wv = 0.01 * g * g;

		/* fp32 sums of n parts, then three roundings */
		if (fabs(m[i] - wm) > 1e-6 * fabs(wm) || fabs(v[i] - wv) > 2e-6 * wv) {
			tr_errorf(&r->err, 1, "moments of element %lld: %g %g, expected %g %g", (long long)(begin + i),
				  (double)m[i], (double)v[i], wm, wv);
			goto out;
		}
	}
	rc = 0;
out:
	tr_optim_destroy(o);
	return rc;
}

static void test_moments(void **state)
{
	static const double limits[] = { 0, 0.5, 1e9 };
	static const struct sp_sizes meshes[] = { { 1, 1, 1, 1 }, { 3, 1, 1, 1 }, { 2, 1, 2, 1 }, { 1, 1, 1, 3 }, { 2, 1, 1, 2 } };

	(void)state;
	for (size_t k = 0; k < 3; k++)
		for (size_t i = 0; i < 5; i++) {
			struct step_arg a = { { 0.9, 0.99, 1e-8, 0, limits[k] }, 1e-3, 0, -1 };
			struct mu_job job = { &small, kn_cpu(), 0, 1, moments_body, &a };

			mu_run_ok(&job, meshes[i]);
		}
}

/* No gradient: matrices shrink by 1 - lr * decay, vectors keep their bits, wherever the ranges are cut. */
static int decay_body(struct mu_rank *r, void *arg)
{
	struct step_arg *a = arg;
	struct tr_optim *o = NULL;
	int64_t n;
	const struct tr_param *p = tr_model_params(r->m, &n);
	float *w = tr_model_weights(r->m);
	double norm;
	int rc = -1;

	if (tr_optim_create(r->m, r->mesh, r->ops, r->ctx, &a->opts, &o, &r->err))
		goto out;
	if (tr_optim_step(o, 1, a->lr, &norm, &r->err))
		goto out;
	for (int64_t k = 0; k < n; k++)
		for (int64_t i = 0; i < p[k].count; i++) {
			float was = mu_weight(&p[k], i), want = p[k].ndim == 1 ? was : (float)(was * (1 - 0.01 * 0.5));
			float got = w[p[k].offset + i];

			if (p[k].ndim == 1 ? got != want : fabsf(got - want) > 1.2e-7f * fabsf(want)) {
				tr_errorf(&r->err, 1, "%s[%lld]: %.9g, expected %.9g", p[k].name, (long long)i, (double)got,
					  (double)want);
				goto out;
			}
		}
	rc = norm == 0 ? 0 : tr_errorf(&r->err, 1, "norm of nothing is %g", norm);
out:
	tr_optim_destroy(o);
	return rc;
}

static void test_decay(void **state)
{
	(void)state;
	for (int sp = 1; sp <= 4; sp++) {
		struct step_arg a = { { 0.9, 0.99, 1e-8, 0.5, 1 }, 0.01, 0, -1 };
		struct mu_job job = { &small, kn_cpu(), 0, 1, decay_body, &a };

		mu_run_ok(&job, (struct sp_sizes){ sp, 1, 1, 1 });
	}
}

/* One bad element on one rank: every rank refuses, names the step and keeps its weights and moments. */
static int poison_body(struct mu_rank *r, void *arg)
{
	struct step_arg *a = arg;
	struct tr_optim *o = NULL;
	struct tr_error e = { 0 };
	int64_t n, begin, end;
	const struct tr_param *p = tr_model_params(r->m, &n);
	float *m, *v, *w = tr_model_weights(r->m);
	double norm = 0;
	int rc = -1;

	if (tr_optim_create(r->m, r->mesh, r->ops, r->ctx, &a->opts, &o, &r->err))
		goto out;
	set_grads(r);
	if (r->info.coord.slot == a->bad_rank)
		tr_model_grads(r->m)[tr_model_total(r->m) / 2] = (float)a->poison;
	if (tr_optim_step(o, 77, a->lr, &norm, &e) != -1 || e.exit_code != TR_EXIT_NUMBERS ||
	    !strstr(e.text, isnan(a->poison) ? "step 77: the gradient norm is not a number" :
					       "step 77: the gradient norm is infinite") ||
	    isfinite(norm)) {
		tr_errorf(&r->err, 1, "norm %g, exit code %d, \"%s\"", norm, e.exit_code, e.text);
		goto out;
	}
	tr_optim_state(o, &begin, &end, &m, &v);
	rc = 0;
	for (int64_t i = 0; i < end - begin; i++)
		rc |= m[i] != 0 || v[i] != 0;
	for (int64_t k = 0; k < n; k++)
		for (int64_t i = 0; i < p[k].count; i++)
			rc |= w[p[k].offset + i] != mu_weight(&p[k], i);
	if (rc)
		rc = tr_errorf(&r->err, 1, "a refused step changed weights or moments");
out:
	tr_optim_destroy(o);
	return rc;
}

static void test_poison(void **state)
{
	static const struct sp_sizes meshes[] = { { 1, 1, 1, 1 }, { 2, 1, 1, 1 }, { 1, 1, 1, 2 }, { 2, 1, 1, 2 } };

	(void)state;
	for (size_t i = 0; i < 4; i++)
		for (int k = 0; k < 2; k++) {
			int world = meshes[i].sp * meshes[i].dp_replicate;
			struct step_arg a = { { 0.9, 0.99, 1e-8, 0, 1 }, 1e-3, k ? INFINITY : NAN, world - 1 };
			struct mu_job job = { &small, kn_cpu(), 0, 1, poison_body, &a };

			mu_run_ok(&job, meshes[i]);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_golden), cmocka_unit_test(test_same_bits), cmocka_unit_test(test_moments),
		cmocka_unit_test(test_decay),  cmocka_unit_test(test_poison),
	};

	return cmocka_run_group_tests_name("optim", tests, NULL, NULL);
}
