/* SPDX-License-Identifier: Apache-2.0 */
/* The whole model against PyTorch/Transformers and against finite differences of its own loss. */
#include "tests/unit/golden_util.h"

static const struct sp_sizes one = { 1, 1, 1, 1 };

/* ---- logits, loss and every gradient of one row --------------------------------------------------------------- */

struct case_arg {
	const struct golden *g;
	const char *name;
	json_t *spec;
	int64_t vocab;
	/* results of rank 0; the gradient is summed over sp */
	double loss;
	float *grads, *logits;
	int64_t nparams, total;
	struct tr_param *params;
	pthread_mutex_t lock;
};

static int golden_body(struct mu_rank *r, void *arg)
{
	struct case_arg *a = arg;
	int p = r->info.sizes.sp, rank = r->info.coord.sp;
	struct sp_comm *sp = sp_mesh_comm(r->mesh, SP_GROUP_SP);
	struct mu_row *row = golden_row(a->g, 0, a->vocab);
	struct io_batch b = mu_batch(row, p, rank);
	struct sp_error se = { 0 };
	const struct tr_param *params;
	double loss = 0;
	int rc = -1;

	if (tr_model_row(r->m, &b, 1, 1.0 / (double)row->targets, &loss, NULL, &r->err))
		goto out;
	pthread_mutex_lock(&a->lock); /* every rank writes its own tokens */
	if (!a->logits)
		a->logits = calloc((size_t)(row->tokens * a->vocab), sizeof(float));
	pthread_mutex_unlock(&a->lock);
	if (tr_model_logits(r->m, &b, a->logits + b.t0 * a->vocab, &r->err))
		goto out;
	loss /= (double)row->targets;
	if (sp_comm_host_sum(sp, &loss, 1, &se) ||
	    sp_comm_all_reduce(sp, tr_model_grads(r->m), tr_model_total(r->m), &se)) {
		tr_error_sp(&r->err, &se);
		goto out;
	}
	if (rank == 0) {
		a->loss = loss;
		a->total = tr_model_total(r->m);
		params = tr_model_params(r->m, &a->nparams);
		a->params = malloc((size_t)a->nparams * sizeof(*params));
		memcpy(a->params, params, (size_t)a->nparams * sizeof(*params));
		a->grads = malloc((size_t)a->total * sizeof(float));
		memcpy(a->grads, tr_model_grads(r->m), (size_t)a->total * sizeof(float));
	}
	rc = 0;
out:
	mu_row_free(row);
	return rc;
}

/* Tolerances: both sides are fp32 with sums of up to 100 terms, a few 1e-7 apart; the gradient's norm per tensor 1e-6 or so. */
static void check_case(const struct golden *g, const char *name, json_t *spec, const struct kn_ops *ops, int sp)
{
	struct tr_model_config c = golden_config(golden_at(spec, "config"));
	struct case_arg a = { .g = g, .name = name, .spec = spec, .vocab = c.vocab_size };
	struct mu_job job = { &c, ops, 16, 1, golden_body, &a };
	struct sp_sizes sizes = { sp, 1, 1, 1 };
	int64_t V = c.vocab_size, T = 37;
	int64_t at[3] = { 0, T / 2, T - 1 };
	float *want, *logits = malloc((size_t)(3 * V) * sizeof(float));
	char what[128];

	pthread_mutex_init(&a.lock, NULL);
	mu_run_ok(&job, sizes);
	snprintf(what, sizeof(what), "%s, %s, sp %d", name, ops->name, sp);
	mu_near(what, a.loss, golden_real(spec, "loss"), 1e-6);
	golden_tensor(g, name, "logits", NULL, 3 * V, logits);
	for (int i = 0; i < 3; i++) {
		double d = mu_distance(a.logits + at[i] * V, logits + i * V, V);

		if (!(d <= 2e-6))
			fail_msg("%s: logits of token %d differ by %.3g of their norm, allowed 2e-6", what, (int)at[i], d);
	}
	want = golden_flat(g, name, "grad", a.params, a.nparams, a.total);
	mu_near_tensors(what, a.params, a.nparams, a.grads, want, 1e-5);
	pthread_mutex_destroy(&a.lock);
	free(want);
	free(logits);
	free(a.logits);
	free(a.grads);
	free(a.params);
}

static void test_golden(void **state)
{
	struct golden g = golden_open();
	const char *name;
	json_t *spec;
	int n = 0;

	(void)state;
	json_object_foreach(golden_at(g.doc, "cases"), name, spec) {
		check_case(&g, name, spec, kn_ref(), 1);
		check_case(&g, name, spec, kn_cpu(), 1);
		check_case(&g, name, spec, kn_cpu(), 3);
		n++;
	}
	assert_int_equal(n, 4);
	golden_close(&g);
}

/* ---- finite differences ------------------------------------------------------------------------------------------- */

/*
 * Central differences of the mean loss on the oracle backend (fp64 sums, fp32 storage). Two kinds of direction per tensor: the
 * whole gradient, and single elements: the three largest gradients. The step moves the loss by about 2e-3 in each direction
 * (h = 1e-3 / |slope|, at most 2^-6 of the tensor's scale): rounding of fp32 activations leaves some 1e-7 of the loss,
 * 4e-7 / 2e-3 = 2e-4 of the slope, and the curvature term h^2 f'''/6 is of the same order. Tolerance 5e-3 (single elements
 * 2e-2: their step is cut off earlier), while any wrong factor, sign or missing term is off by 0.1 or more.
 */
static double loss_at(struct mu_rank *r, const struct io_batch *b, int64_t targets)
{
	double loss = 0;

	if (tr_model_row(r->m, b, 0, 1, &loss, NULL, &r->err))
		return NAN;
	return loss / (double)targets;
}

/* Slope along u (n elements at w), |u| = 1; want: the gradient's. */
static int slope_ok(struct mu_rank *r, const struct io_batch *b, int64_t targets, const char *name, float *w, int64_t n,
		    const double *u, double want, double tol)
{
	float *keep = malloc((size_t)n * sizeof(*keep));
	double h = fmin(1e-3 / fabs(want), 0x1p-6 * sqrt((double)n)), f[2], moved = 0, got;

	memcpy(keep, w, (size_t)n * sizeof(*keep));
	for (int side = 0; side < 2; side++) {
		for (int64_t i = 0; i < n; i++) {
			w[i] = (float)(keep[i] + (side ? -h : h) * u[i]);
			moved += ((double)w[i] - keep[i]) * u[i] * (side ? -1 : 1); /* what rounding to fp32 left of 2h */
		}
		f[side] = loss_at(r, b, targets);
	}
	memcpy(w, keep, (size_t)n * sizeof(*keep));
	free(keep);
	got = (f[0] - f[1]) / moved;
	if (fabs(got - want) <= tol * fabs(want))
		return 0;
	return tr_errorf(&r->err, 1, "%s: slope %.6g by differences (h %.3g), %.6g by backward", name, got, h, want);
}

static int check_tensor(struct mu_rank *r, const struct io_batch *b, int64_t targets, const struct tr_param *p)
{
	float *w = tr_model_weights(r->m) + p->offset, *g = tr_model_grads(r->m) + p->offset;
	double *u = calloc((size_t)p->count, sizeof(*u)), norm = 0;
	int rc = -1;

	for (int64_t i = 0; i < p->count; i++)
		norm += (double)g[i] * g[i];
	norm = sqrt(norm);
	for (int64_t i = 0; i < p->count; i++)
		u[i] = g[i] / norm;
	if (!(norm > 1e-4)) {
		tr_errorf(&r->err, 1, "%s: the gradient is %g: nothing to check", p->name, norm);
		goto out;
	}
	if (slope_ok(r, b, targets, p->name, w, p->count, u, norm, 5e-3))
		goto out;
	for (int k = 0; k < 3; k++) {
		int64_t at = 0;
		const double e = 1;

		for (int64_t i = 1; i < p->count; i++)
			if (fabs(u[i]) > fabs(u[at]))
				at = i;
		u[at] = 0;
		if (slope_ok(r, b, targets, p->name, w + at, 1, &e, g[at], 2e-2))
			goto out;
	}
	rc = 0;
out:
	free(u);
	return rc;
}

static int differences_body(struct mu_rank *r, void *arg)
{
	struct case_arg *a = arg;
	struct mu_row *row = golden_row(a->g, 0, a->vocab);
	struct io_batch b = mu_batch(row, 1, 0);
	const struct tr_param *p;
	double loss = 0;
	int64_t n;
	int rc;

	rc = tr_model_row(r->m, &b, 1, 1.0 / (double)row->targets, &loss, NULL, &r->err);
	p = tr_model_params(r->m, &n);
	for (int64_t k = 0; k < n && !rc; k++)
		rc = check_tensor(r, &b, row->targets, &p[k]);
	mu_row_free(row);
	return rc;
}

static void test_differences(void **state)
{
	struct golden g = golden_open();
	const char *name;
	json_t *spec;

	(void)state;
	json_object_foreach(golden_at(g.doc, "cases"), name, spec) {
		struct tr_model_config c = golden_config(golden_at(spec, "config"));
		struct case_arg a = { .g = &g, .name = name, .vocab = c.vocab_size };
		struct mu_job job = { &c, kn_ref(), 0, 1, differences_body, &a };

		mu_run_ok(&job, one);
	}
	golden_close(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_golden),
		cmocka_unit_test(test_differences),
	};

	return cmocka_run_group_tests_name("model_golden", tests, NULL, NULL);
}
