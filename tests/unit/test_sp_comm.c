/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators on virtual ranks. All comparisons are exact: a sum's value is defined by rank order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <time.h>
#include "tests/unit/loop_util.h"

#define WRONG(v, ...) sp_errorf(&(v)->err, SP_EINTERNAL, __VA_ARGS__)

static const int ranks[] = {1, 2, 3, 4, 8};

static void each(int (*fn)(struct vrank *v), void *arg)
{
	struct sp_boot_opts o = {.timeout_s = 60};
	struct sp_error err;

	for (size_t i = 0; i < sizeof(ranks) / sizeof(*ranks); i++)
		assert_int_equal(run_loop(&o, ranks[i], 1, kn_ref(), fn, arg, &err), 0);
}

/* ---- host collectives -------------------------------------------------------------------------------------- */

static int host_fn(struct vrank *v)
{
	struct sp_comm *c = sp_mesh_comm(v->mesh, SP_GROUP_WORLD);
	int n = sp_comm_size(c), me = sp_comm_rank(c);
	int32_t mine[2] = {me, -me}, all[2 * 8];
	double x[64], want;
	int64_t m[3] = {me, -me, 5};
	char text[1000];

	if (sp_comm_host_gather(c, mine, sizeof(mine), all, &v->err))
		return -1;
	for (int r = 0; r < n; r++)
		if (all[2 * r] != r || all[2 * r + 1] != -r)
			return WRONG(v, "gather: %d from %d", all[2 * r], r);
	for (int i = 0; i < 64; i++)
		x[i] = 1.0 / (me + i + 1);
	if (sp_comm_host_sum(c, x, 64, &v->err))
		return -1;
	for (int i = 0; i < 64; i++) {
		want = 1.0 / (i + 1);
		for (int r = 1; r < n; r++)
			want += 1.0 / (r + i + 1);
		if (x[i] != want)
			return WRONG(v, "sum %d: %.17g not %.17g", i, x[i], want);
	}
	if (!sp_comm_host_sum(c, x, 65, NULL))
		return WRONG(v, "a sum of 65 values passed");
	if (sp_comm_host_max(c, m, 3, &v->err))
		return -1;
	if (m[0] != n - 1 || m[1] != 0 || m[2] != 5)
		return WRONG(v, "max %lld %lld %lld", (long long)m[0], (long long)m[1], (long long)m[2]);
	for (int root = 0; root < n; root++) {
		memset(text, me == root ? 'a' + root : 0, sizeof(text));
		if (sp_comm_host_bcast(c, text, sizeof(text), root, &v->err))
			return -1;
		if (text[0] != 'a' + root || text[999] != 'a' + root)
			return WRONG(v, "broadcast from %d", root);
	}
	for (int i = 0; i < 20; i++)
		if (sp_comm_barrier(c, &v->err))
			return -1;
	return 0;
}

static void test_host(void **state)
{
	(void)state;
	each(host_fn, NULL);
}

/* A barrier holds everyone until the last has come. */
static int barrier_fn(struct vrank *v)
{
	struct sp_comm *c = sp_mesh_comm(v->mesh, SP_GROUP_WORLD);
	int *arrived = v->arg;

	for (int i = 1; i <= 50; i++) {
		__atomic_add_fetch(arrived, 1, __ATOMIC_SEQ_CST);
		if (sp_comm_barrier(c, &v->err))
			return -1;
		if (__atomic_load_n(arrived, __ATOMIC_SEQ_CST) < i * sp_comm_size(c))
			return WRONG(v, "barrier %d let this rank through early", i);
		if (sp_comm_barrier(c, &v->err))
			return -1;
	}
	return 0;
}

static void test_barrier(void **state)
{
	struct sp_boot_opts o = {.timeout_s = 60};
	struct sp_error err;
	int arrived = 0;

	(void)state;
	assert_int_equal(run_loop(&o, 4, 2, kn_ref(), barrier_fn, &arrived, &err), 0);
}

/* ---- the block exchange --------------------------------------------------------------------------------------- */

#define MAXB 5

/* Length of block b of `from` to `to` in a round, known to both sides; often 0, to oneself as well. */
static size_t length_of(int round, int from, int to, int b)
{
	uint64_t s = 77 + (uint64_t)round * 1000003 + (uint64_t)(from * 64 + to * 8 + b);

	rnd(&s);
	rnd(&s);
	return rnd(&s) % 4 ? (size_t)(rnd(&s) % 700) : 0;
}

static unsigned char byte_of(int round, int from, int to, int b, size_t i)
{
	return (unsigned char)(round * 31 + from * 17 + to * 5 + b * 3 + (int)i);
}

struct half {
	unsigned char mem[8][MAXB][700];
	struct sp_block blocks[8 * MAXB];
	int n;
};

/* Blocks in an order of their own on each side: only the order within a pair is promised. */
static void make_half(struct half *h, int round, int me, int n, int sending)
{
	h->n = 0;
	for (int b = 0; b < MAXB; b++)
		for (int k = 0; k < n; k++) {
			int p = sending ? (me + k) % n : n - 1 - k;
			size_t len = sending ? length_of(round, me, p, b) : length_of(round, p, me, b);

			for (size_t i = 0; i < len; i++)
				h->mem[p][b][i] = sending ? byte_of(round, me, p, b, i) : 0;
			h->blocks[h->n++] = (struct sp_block){p, h->mem[p][b], len};
		}
}

static int check_half(struct vrank *v, const struct half *h, int round, int me, int n)
{
	for (int p = 0; p < n; p++)
		for (int b = 0; b < MAXB; b++)
			for (size_t i = 0; i < length_of(round, p, me, b); i++)
				if (h->mem[p][b][i] != byte_of(round, p, me, b, i))
					return WRONG(v, "round %d: block %d from %d, byte %zu", round, b, p, i);
	return 0;
}

/* Two exchanges in flight, waited for in either order. */
static int exchange_fn(struct vrank *v)
{
	struct sp_comm *c = sp_mesh_comm(v->mesh, SP_GROUP_WORLD);
	int n = sp_comm_size(c), me = sp_comm_rank(c), rc = -1;
	struct half *h = calloc(4, sizeof(*h));
	struct sp_request *r[2], *third;

	for (int round = 0; h && round < 40; round += 2) {
		for (int k = 0; k < 2; k++) {
			make_half(&h[2 * k], round + k, me, n, 1);
			make_half(&h[2 * k + 1], round + k, me, n, 0);
			if (sp_comm_start(c, "test", h[2 * k].blocks, h[2 * k].n, h[2 * k + 1].blocks, h[2 * k + 1].n,
					  &r[k], &v->err))
				goto out;
		}
		sp_comm_poll(c);
		if (!sp_comm_start(c, "test", NULL, 0, NULL, 0, &third, NULL)) {
			WRONG(v, "a third exchange was allowed");
			goto out;
		}
		int first = (round / 2 + me) % 2; /* ranks disagree about which they wait for first */

		if (sp_comm_wait(r[first], &v->err) || sp_comm_wait(r[!first], &v->err) ||
		    check_half(v, &h[1], round, me, n) || check_half(v, &h[3], round + 1, me, n))
			goto out;
	}
	rc = h ? 0 : -1;
out:
	free(h);
	return rc;
}

static void test_exchange(void **state)
{
	(void)state;
	each(exchange_fn, NULL);
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

static float value_of(int rank, int64_t i)
{
	uint64_t s = 12345 + (uint64_t)rank * 7919 + (uint64_t)i * 104729;

	rnd(&s);
	return rnd_f(&s) * (i % 3 ? 1.0f : 1000.0f);
}

static float sum_of(int n, int64_t i)
{
	float sum = value_of(0, i);

	for (int r = 1; r < n; r++)
		sum += value_of(r, i);
	return sum;
}

static int same(const float *a, const float *b)
{
	return !memcmp(a, b, sizeof(*a));
}

static int check_sum(struct vrank *v, const char *what, const float *x, int64_t from, int64_t to, int n)
{
	for (int64_t i = from; i < to; i++) {
		float want = sum_of(n, i);

		if (!same(&x[i], &want))
			return WRONG(v, "%s: element %lld is %.9g not %.9g", what, (long long)i, (double)x[i], (double)want);
	}
	return 0;
}

static void fill(float *x, int me, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		x[i] = value_of(me, i);
}

static int reduce_fn(struct vrank *v)
{
	struct sp_comm *c = sp_mesh_comm(v->mesh, SP_GROUP_WORLD);
	int n = sp_comm_size(c), me = sp_comm_rank(c), rc = -1;
	int64_t sizes[] = {0, 1, 5, 1000, *(int64_t *)v->arg}, off[9];
	float *x = malloc((size_t)(*(int64_t *)v->arg + 1000) * sizeof(*x));
	uint64_t seed = 5;

	for (size_t k = 0; x && k < sizeof(sizes) / sizeof(*sizes); k++) {
		fill(x, me, sizes[k]);
		if (sp_comm_all_reduce(c, x, sizes[k], &v->err) || check_sum(v, "all_reduce", x, 0, sizes[k], n))
			goto out;
		off[0] = 0; /* uneven ranges, some of them empty */
		for (int i = 1; i < n; i++)
			off[i] = off[i - 1] + (rnd(&seed) % 3 ? (int64_t)(rnd(&seed) % (uint64_t)(sizes[k] - off[i - 1] + 1)) : 0);
		off[n] = sizes[k];
		fill(x, me, sizes[k]);
		if (sp_comm_reduce_scatter(c, x, off, &v->err) ||
		    check_sum(v, "reduce_scatter", x, off[me], off[me + 1], n))
			goto out;
		if (sp_comm_all_gather(c, x, off, &v->err) || check_sum(v, "all_gather", x, 0, sizes[k], n))
			goto out;
	}
	rc = x ? 0 : -1;
out:
	free(x);
	return rc;
}

static void test_reduce(void **state)
{
	struct sp_boot_opts o = {.timeout_s = 60};
	struct sp_error err;
	int64_t small = 4099, several_chunks = 5000000; /* a range of two ranks is 2.5 chunks */

	(void)state;
	each(reduce_fn, &small);
	assert_int_equal(run_loop(&o, 2, 1, kn_ref(), reduce_fn, &several_chunks, &err), 0);
}

/* ---- groups -------------------------------------------------------------------------------------------------------- */

/* The four communicators are independent and say who their members are. */
static int groups_fn(struct vrank *v)
{
	struct sp_mesh_info in;

	sp_mesh_info(v->mesh, &in);
	for (enum sp_group g = SP_GROUP_SP; g <= SP_GROUP_WORLD; g++) {
		struct sp_comm *c = sp_mesh_comm(v->mesh, g);
		int32_t mine = in.rank, all[8];

		if (sp_comm_host_gather(c, &mine, sizeof(mine), all, &v->err))
			return -1;
		for (int i = 0; i < sp_comm_size(c); i++)
			if (all[i] != sp_comm_world_rank(c, i))
				return WRONG(v, "%s: member %d is %d not %d", sp_comm_name(c), i, all[i],
					     sp_comm_world_rank(c, i));
		if (sp_comm_world_rank(c, sp_comm_rank(c)) != in.rank)
			return WRONG(v, "%s: own place", sp_comm_name(c));
	}
	return 0;
}

static void test_groups(void **state)
{
	struct sp_boot_opts o = {.sizes = {.sp = 2, .cp = 1, .dp_shard = 2, .dp_replicate = 2}, .timeout_s = 60};
	struct sp_error err;

	(void)state;
	for (int nodes = 1; nodes <= 8; nodes++)
		assert_int_equal(run_loop(&o, 8, nodes, kn_ref(), groups_fn, NULL, &err), 0);
}

/* ---- things that go wrong --------------------------------------------------------------------------------------- */

static int has_text(struct vrank *v, const struct sp_error *e, enum sp_code code, const char *a, const char *b)
{
	if (e->code == code && strstr(e->text, a) && strstr(e->text, b))
		return 0;
	return WRONG(v, "code %d, text: %s", (int)e->code, e->text);
}

/* Rank 2 stays away: the others name it, its node, the operation and the step. */
static int late_fn(struct vrank *v)
{
	struct sp_comm *c = sp_mesh_comm(v->mesh, SP_GROUP_WORLD);
	struct sp_error e = {.text = ""};
	pthread_barrier_t *all = v->arg;
	int rc = 0;

	sp_mesh_set_step(v->mesh, 41);
	if (v->rank != 2) {
		float x[100] = {0};

		if (!sp_comm_all_reduce(c, x, 100, &e))
			rc = WRONG(v, "a reduction without rank 2 succeeded");
		else if (has_text(v, &e, SP_ETIMEOUT, "rank 2 (node virtual1)", "reduce_scatter on world at step 41"))
			rc = -1;
		else if (strstr(e.text, "for rank 0") || strstr(e.text, ", rank 3"))
			rc = WRONG(v, "names a rank that came: %s", e.text);
	}
	pthread_barrier_wait(all);
	if (v->rank == 0)
		sp_mesh_abort(v->mesh, 3, "rank 2 is late");
	pthread_barrier_wait(all);
	if (!rc && (!sp_comm_barrier(c, &e) || has_text(v, &e, SP_EPEER, "rank 0 aborted the job", "rank 2 is late")))
		rc = -1;
	return rc;
}

static void test_late(void **state)
{
	struct sp_boot_opts o = {.timeout_s = 1};
	struct sp_error err;
	pthread_barrier_t all;

	(void)state;
	pthread_barrier_init(&all, NULL, 4);
	assert_int_equal(run_loop(&o, 4, 2, kn_ref(), late_fn, &all, &err), 0);
	pthread_barrier_destroy(&all);
}

/* An abort wakes those who wait, long before their deadline. */
static int abort_fn(struct vrank *v)
{
	struct sp_comm *c = sp_mesh_comm(v->mesh, SP_GROUP_WORLD);
	struct sp_error e = {.text = ""};

	if (v->rank == 3) {
		struct timespec ts = {.tv_nsec = 50000000};

		nanosleep(&ts, NULL);
		sp_mesh_abort(v->mesh, 7, "disk full");
		return 0;
	}
	if (!sp_comm_barrier(c, &e))
		return WRONG(v, "the barrier passed");
	return has_text(v, &e, SP_EPEER, "rank 3 aborted the job: disk full", "barrier");
}

static void test_abort(void **state)
{
	struct sp_boot_opts o = {.timeout_s = 600};
	struct sp_error err;
	struct timespec a, b;

	(void)state;
	clock_gettime(CLOCK_MONOTONIC, &a);
	assert_int_equal(run_loop(&o, 8, 1, kn_ref(), abort_fn, NULL, &err), 0);
	clock_gettime(CLOCK_MONOTONIC, &b);
	assert_true(b.tv_sec - a.tv_sec < 300); /* not the deadline */
}

/* Halves that do not fit are an error on both sides, not a hang or an overrun. */
static int mismatch_fn(struct vrank *v)
{
	struct sp_comm *c = sp_mesh_comm(v->mesh, SP_GROUP_WORLD);
	struct sp_error e = {.text = ""};
	char mem[64] = {0};
	struct sp_block b = {1 - v->rank, mem, v->rank ? 32 : 64};

	if (!sp_comm_exchange(c, "test", v->rank ? NULL : &b, !v->rank, v->rank ? &b : NULL, v->rank, &e))
		return WRONG(v, "the exchange passed");
	if (has_text(v, &e, SP_EINTERNAL, "do not match", "test on world"))
		return -1;
	b.peer = 2;
	if (!sp_comm_exchange(c, "test", &b, 1, NULL, 0, &e))
		return WRONG(v, "a block to rank 2 of 2 passed");
	b.peer = v->rank;
	if (!sp_comm_exchange(c, "test", &b, 1, NULL, 0, &e))
		return WRONG(v, "an own block without a receiver passed");
	return 0;
}

static void test_mismatch(void **state)
{
	struct sp_boot_opts o = {.timeout_s = 60};
	struct sp_error err;

	(void)state;
	assert_int_equal(run_loop(&o, 2, 1, kn_ref(), mismatch_fn, NULL, &err), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_host),   cmocka_unit_test(test_barrier), cmocka_unit_test(test_exchange),
		cmocka_unit_test(test_reduce), cmocka_unit_test(test_groups),  cmocka_unit_test(test_late),
		cmocka_unit_test(test_abort),  cmocka_unit_test(test_mismatch),
	};

	/* Sizes in the environment would win over the ones the tests give. */
	unsetenv(SP_ENV_SP_SIZE);
	unsetenv(SP_ENV_CP_SIZE);
	unsetenv(SP_ENV_DP_SHARD);
	unsetenv(SP_ENV_DP_REPLICATE);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
