/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Speed of the cpu backend, operation by operation: median of the runs that fit in a slice of time, as GFLOP/s or
 * GB/s and against the best matrix product of the same run ("of peak"). Never a test: it prints, it decides nothing.
 *
 * On a machine with other load, wall-clock medians say little: --cpu counts processor time (of all threads, divided
 * by their number) instead, --best takes the fastest run.
 *
 *   bench_kernels [--threads N] [--ms MILLISECONDS_PER_LINE] [--cpu] [--best] [gemm|attn|rows ...]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/kernels.h"

static double now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct bench {
	const struct kn_ops *o;
	struct kn_ctx *c;
	double slice, peak; /* seconds a line; flop/s of the best product */
	clockid_t clock;
	double share; /* 1, or 1 / threads when processor time is counted */
	int best, failed;
};

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Median (or least) seconds of f(arg), run at least 3 times after one warm-up. */
static double median(struct bench *b, int (*f)(struct bench *, void *), void *arg)
{
	double t[1000], start = now(CLOCK_MONOTONIC);
	int n = 0;

	if (f(b, arg)) {
		fprintf(stderr, "bench_kernels: %s\n", b->o->strerror(b->c));
		b->failed = 1;
		return NAN;
	}
	while (n < 1000 && (n < 3 || now(CLOCK_MONOTONIC) - start < b->slice)) {
		double t0 = now(b->clock);

		f(b, arg);
		t[n++] = (now(b->clock) - t0) * b->share;
	}
	qsort(t, (size_t)n, sizeof(t[0]), by_value);
	return t[b->best ? 0 : n / 2];
}

static float *numbers(struct bench *b, int64_t n)
{
	void *p = NULL;
	float *x;
	uint32_t s = 12345;

	if (b->o->alloc(b->c, (size_t)n * 4, &p)) {
		fprintf(stderr, "bench_kernels: %s\n", b->o->strerror(b->c));
		exit(1);
	}
	x = p;
	for (int64_t i = 0; i < n; i++) {
		s = s * 1664525u + 1013904223u;
		x[i] = (float)(int32_t)s * (1.0f / 2147483648.0f);
	}
	return x;
}

static int run_gemm(struct bench *b, void *g) { return b->o->gemm(b->c, g); }

static double one_gemm(struct bench *b, const char *what, int ta, int tb, int64_t m, int64_t n, int64_t k)
{
	float *x = numbers(b, m * k), *y = numbers(b, k * n), *z = numbers(b, m * n);
	struct kn_gemm g = {.ta = ta, .tb = tb, .m = m, .n = n, .k = k, .alpha = 1, .a = x, .lda = ta ? m : k, .b = y,
			    .ldb = tb ? k : n, .c = z, .ldc = n};
	double t = median(b, run_gemm, &g), rate = 2.0 * (double)m * (double)n * (double)k / t;

	if (what)
		printf("gemm  %-22s %c%c m %5lld n %5lld k %5lld  %9.3f ms  %7.1f GFLOP/s  %5.2f of peak\n", what,
		       ta ? 'T' : 'N', tb ? 'T' : 'N', (long long)m, (long long)n, (long long)k, t * 1e3, rate * 1e-9,
		       rate / b->peak);
	b->o->free(b->c, x);
	b->o->free(b->c, y);
	b->o->free(b->c, z);
	return rate;
}

static void gemms(struct bench *b)
{
	/* tokens, hidden, MLP width of small Llamas; y = x W^T, dx = dy W, dW = dy^T x */
	static const int64_t model[][3] = {{256, 256, 688}, {1024, 384, 1024}, {1024, 768, 2048}};

	for (int i = 0; i < 3; i++) {
		int64_t T = model[i][0], C = model[i][1], F = model[i][2];

		one_gemm(b, "up", 0, 1, T, F, C);
		one_gemm(b, "up dx", 0, 0, T, C, F);
		one_gemm(b, "up dW", 1, 0, F, C, T);
		one_gemm(b, "output", 0, 1, T, C, C);
	}
	for (int64_t n = 8; n <= 128; n *= 2)
		one_gemm(b, "small", 0, 1, n, n, n);
	one_gemm(b, "one token", 0, 1, 1, 768, 768);
	one_gemm(b, "heads", 0, 1, 1024, 16384, 384);
}

static int run_fwd(struct bench *b, void *a) { return b->o->attn_fwd(b->c, a); }
static int run_bwd(struct bench *b, void *a) { return b->o->attn_bwd(b->c, a); }

static void one_attn(struct bench *b, int64_t S, int d, int nq, int nkv, int64_t window)
{
	int64_t lq = nq * d, lk = nkv * d, cu[2] = {0, S};
	float *q = numbers(b, S * lq), *o = numbers(b, S * lq), *go = numbers(b, S * lq), *dq = numbers(b, S * lq),
	      *dsum = numbers(b, S * nq), *lse = numbers(b, S * nq);
	float *k = numbers(b, S * lk), *v = numbers(b, S * lk), *dk = numbers(b, S * lk), *dv = numbers(b, S * lk);
	void *all[] = {q, o, go, dq, dsum, lse, k, v, dk, dv};
	struct kn_q_head qh[64];
	struct kn_kv_head kh[64];
	int kv_of[64];
	struct kn_attn a = {.s = S, .d = d, .nq = nq, .nkv = nkv, .scale = 1 / sqrtf((float)d), .window = window, .cu = cu,
			    .ndoc = 1, .q = qh, .kv = kh, .kv_of = kv_of, .lse = lse};
	double seen = window && window < S ? (double)window * ((double)S - (double)window / 2) : (double)S * (double)(S + 1) / 2;
	double flop = 4.0 * seen * d * nq, tf, tb;

	for (int i = 0; i < nq; i++) {
		qh[i] = (struct kn_q_head){q + i * d, lq, o + i * d, lq, go + i * d, lq, dq + i * d, lq, dsum + i, nq};
		kv_of[i] = i * nkv / nq;
	}
	for (int i = 0; i < nkv; i++)
		kh[i] = (struct kn_kv_head){k + i * d, v + i * d, lk, lk, dk + i * d, dv + i * d, lk, lk};
	tf = median(b, run_fwd, &a);
	tb = median(b, run_bwd, &a);
	printf("attn  S %6lld d %3d heads %2d/%-2d window %5lld  fwd %9.3f ms %6.1f GFLOP/s %5.2f of peak   bwd %9.3f ms %6.1f "
	       "GFLOP/s %5.2f of peak\n",
	       (long long)S, d, nq, nkv, (long long)window, tf * 1e3, flop / tf * 1e-9, flop / tf / b->peak, tb * 1e3,
	       2.5 * flop / tb * 1e-9, 2.5 * flop / tb / b->peak);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		b->o->free(b->c, all[i]);
}

static void attns(struct bench *b)
{
	static const int64_t len[] = {256, 1024, 4096};
	static const int dims[] = {16, 32, 64, 80, 128, 256};

	for (int i = 0; i < 3; i++)
		for (int j = 0; j < 6; j++)
			one_attn(b, len[i], dims[j], 4, 2, 0);
	one_attn(b, 1024, 64, 1, 1, 0);
	one_attn(b, 1024, 64, 8, 1, 0);
	one_attn(b, 1024, 64, 16, 2, 0);
	one_attn(b, 4096, 64, 4, 2, 512);
}

/* Row operations of a block with T tokens, C channels, F width, V words. */
struct rows {
	int64_t T, C, F, V;
	float *x, *y, *z, *w, *st, *big;
	int64_t *pos;
	int32_t *lab;
	int op;
};

static int run_row(struct bench *b, void *arg)
{
	struct rows *r = arg;
	struct kn_adamw a = {.n = r->T * r->F, .p = r->x, .m = r->y, .v = r->z, .g = r->big, .lr = 1e-3, .beta1 = 0.9,
			     .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 1, .step = 10};
	double s = 0;

	switch (r->op) {
	case 0:
		return b->o->rmsnorm_fwd(b->c, KN_F32, r->T, r->C, 1e-5f, r->x, r->C, r->w, r->y, r->C, r->st);
	case 1:
		return b->o->rmsnorm_bwd(b->c, KN_F32, r->T, r->C, r->x, r->C, r->w, r->st, r->y, r->C, r->z, r->C, 1, r->w);
	case 2:
		return b->o->swiglu_fwd(b->c, KN_F32, r->T, r->F, r->x, r->F, r->y, r->F, r->z, r->F);
	case 3:
		return b->o->swiglu_bwd(b->c, KN_F32, r->T, r->F, r->x, r->F, r->y, r->F, r->z, r->F, r->x, r->F, r->y, r->F);
	case 4:
		return b->o->rope(b->c, KN_F32, r->T, r->C / 64, 64, 64, r->x, r->C, r->pos, r->w, r->w, 1, 0);
	case 5:
		return b->o->add(b->c, KN_F32, r->T * r->C, r->x, r->y);
	case 6:
		return b->o->xent(b->c, r->T, r->V, r->big, r->V, r->lab, 1, NULL, &s);
	case 7:
		for (int64_t i = 0; i < r->T * r->F; i++)
			if (r->z[i] < 0)
				r->z[i] = -r->z[i];
		return b->o->adamw(b->c, &a);
	case 8:
		return b->o->sumsq(b->c, r->T * r->F, r->x, &s);
	case 9:
		return b->o->bias_bwd(b->c, KN_F32, r->T, r->C, r->x, r->C, r->w);
	default:
		return b->o->rowdot(b->c, KN_F32, r->T, r->C / 64, 64, r->x, r->C, r->y, r->C, r->st, 16);
	}
}

static void all_rows(struct bench *b)
{
	static const char *name[] = {"rmsnorm fwd", "rmsnorm bwd", "swiglu fwd", "swiglu bwd", "rope", "add",
				     "cross-entropy", "adamw", "sumsq", "bias bwd", "rowdot"};
	static const int streams[] = {2, 4, 3, 5, 2, 3, 2, 7, 1, 1, 2}; /* floats read or written per element */
	struct rows r = {.T = 1024, .C = 768, .F = 2048, .V = 8192};

	r.x = numbers(b, r.T * r.F);
	r.y = numbers(b, r.T * r.F);
	r.z = numbers(b, r.T * r.F);
	r.w = numbers(b, r.F);
	r.st = numbers(b, r.T * 16);
	r.big = numbers(b, r.T * r.V);
	r.pos = calloc((size_t)r.T, sizeof(*r.pos));
	r.lab = calloc((size_t)r.T, sizeof(*r.lab));
	for (r.op = 0; r.op < 11; r.op++) {
		int64_t cols = r.op == 2 || r.op == 3 || r.op == 7 || r.op == 8 ? r.F : r.op == 6 ? r.V : r.C;
		double t = median(b, run_row, &r);

		printf("rows  %-14s %lld x %-5lld %9.3f ms  %6.1f GB/s  %5.2f ns/element\n", name[r.op], (long long)r.T,
		       (long long)cols, t * 1e3, 4.0 * streams[r.op] * (double)(r.T * cols) / t * 1e-9,
		       t * 1e9 / (double)(r.T * cols));
	}
	b->o->free(b->c, r.x);
	b->o->free(b->c, r.y);
	b->o->free(b->c, r.z);
	b->o->free(b->c, r.w);
	b->o->free(b->c, r.st);
	b->o->free(b->c, r.big);
	free(r.pos);
	free(r.lab);
}

int main(int argc, char **argv)
{
	struct kn_open_args args = {.threads = (int)sysconf(_SC_NPROCESSORS_ONLN)};
	struct bench b = {.o = kn_cpu(), .slice = 0.2, .peak = 1, .clock = CLOCK_MONOTONIC, .share = 1};
	int what = 0;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--threads") && i + 1 < argc)
			args.threads = atoi(argv[++i]);
		else if (!strcmp(argv[i], "--ms") && i + 1 < argc)
			b.slice = atof(argv[++i]) * 1e-3;
		else if (!strcmp(argv[i], "--cpu"))
			b.clock = CLOCK_PROCESS_CPUTIME_ID;
		else if (!strcmp(argv[i], "--best"))
			b.best = 1;
		else if (!strcmp(argv[i], "gemm"))
			what |= 1;
		else if (!strcmp(argv[i], "attn"))
			what |= 2;
		else if (!strcmp(argv[i], "rows"))
			what |= 4;
		else {
			fprintf(stderr, "usage: bench_kernels [--threads N] [--ms N] [--cpu] [--best] [gemm|attn|rows ...]; got \"%s\"\n", argv[i]);
			return 2;
		}
	}
	if (b.o->open(&args, &b.c)) {
		fprintf(stderr, "bench_kernels: cannot open the cpu backend with %d threads (KN_CPU_ISA=%s)\n", args.threads,
			getenv("KN_CPU_ISA") ? getenv("KN_CPU_ISA") : "");
		return 1;
	}
	if (b.clock != CLOCK_MONOTONIC)
		b.share = 1.0 / args.threads;
	for (int i = 0; i < 3; i++)
		b.peak = fmax(b.peak, one_gemm(&b, NULL, 0, 0, 1024, 1024, 1024));
	printf("peak  product of 1024^3 on %d threads: %.1f GFLOP/s\n", args.threads, b.peak * 1e-9);
	if (!what || what & 1)
		gemms(&b);
	if (!what || what & 2)
		attns(&b);
	if (!what || what & 4)
		all_rows(&b);
	b.o->close(b.c);
	return b.failed;
}
