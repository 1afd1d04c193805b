/* SPDX-License-Identifier: Apache-2.0 */
/* The loader: rows, labels and counts against a naive reading of the dataset; resume, layouts, errors, no allocation. */
#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>
#include "tests/unit/data_util.h"
#include "io/io_loader.h"
#include "io/io_manifest.h"

#ifndef __SANITIZE_ADDRESS__
/* Counts allocations of the whole program. */
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t m);
void *__libc_realloc(void *p, size_t n);
static long allocations;

void *malloc(size_t n)
{
	__atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED);
	return __libc_malloc(n);
}

void *calloc(size_t n, size_t m)
{
	__atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED);
	return __libc_calloc(n, m);
}

void *realloc(void *p, size_t n)
{
	__atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED);
	return __libc_realloc(p, n);
}
#endif

#define L 64

struct part {
	int rank, size;
};

/* libsp's even split: the first total % size ranks have one token more. */
static void even(void *arg, int64_t total, int64_t *t0, int64_t *t1)
{
	const struct part *p = arg;
	int64_t q = total / p->size, m = total % p->size;

	*t0 = p->rank * q + (p->rank < m ? p->rank : m);
	*t1 = *t0 + q + (p->rank < m);
}

static struct io_dataset *open_set(void **state, const char *name)
{
	struct io_error err;
	struct io_dataset *ds;

	ok(io_dataset_open(in(*state, name), &ds, &err));
	return ds;
}

static struct io_loader *start(struct io_dataset *ds, struct io_loader_opts o)
{
	struct io_error err;
	struct io_loader *l;

	ok(io_loader_create(ds, &o, &l, &err));
	return l;
}

/* Everything a row must be, from the dataset itself. */
static void check_row(struct io_dataset *ds, const struct io_loader_opts *o, const struct io_batch *b, int64_t step,
		      int64_t micro)
{
	int64_t at = 0, doc = 0, targets = 0, n;
	struct io_dataset_info info;
	struct io_error err;
	uint32_t ids[L];

	io_dataset_info(ds, &info);
	n = info.samples;
	assert_int_equal(b->step, step);
	assert_int_equal(b->micro, micro);
	assert_true(b->epoch == (double)((step + 1) * o->global_batch) / (double)n);
	for (int64_t k = 0; k < o->micro_batch; k++) {
		int64_t p = step * o->global_batch + (micro * o->dp_size + o->dp_rank) * o->micro_batch + k, t = 0;
		int64_t index = io_order(o->seed, o->shuffle, n, p);
		struct io_sample s;

		ok(io_dataset_sample(ds, index, &s, &err));
		ok(io_dataset_read(ds, index, 0, s.tokens, ids, &err));
		targets += s.targets;
		for (int64_t j = 0; j < s.nseg; j++) {
			assert_int_equal(b->cu[doc++], at);
			for (int64_t i = 0; i < s.seg_len[j]; i++, t++, at++) {
				int32_t label = i + 1 < s.seg_len[j] ? (int32_t)ids[t + 1] : IO_LABEL_IGNORE;

				if (at < b->t0 || at >= b->t1)
					continue;
				assert_int_equal(b->ids[at - b->t0], ids[t]);
				assert_int_equal(b->labels[at - b->t0], label);
				assert_int_equal(b->positions[at - b->t0], i);
			}
		}
	}
	assert_int_equal(b->cu[doc], at);
	assert_int_equal(b->ndoc, doc);
	assert_int_equal(b->tokens, at);
	assert_int_equal(b->row_targets, targets);
}

/* sp x dp x micro-batch, over an epoch boundary; step totals are those of all rows together. */
static void rows_equal_the_dataset(void **state)
{
	struct io_dataset *ds;
	struct io_error err;

	make_dataset(in(*state, "ds"), 120, L, 3000, 2000, 1);
	ds = open_set(state, "ds");
	for (int sp = 1; sp <= 5; sp++)
		for (int dp = 1; dp <= 3; dp++)
			for (int64_t B = 1; B <= 3; B++) {
				struct io_loader *l[5][3];
				struct part part[5];
				struct io_loader_opts o = {.seed = 9, .shuffle = sp != 2, .global_batch = 2 * dp * B,
							   .micro_batch = B, .dp_size = dp, .slice = even, .prefetch = 3};

				for (int r = 0; r < sp; r++)
					for (int d = 0; d < dp; d++) {
						part[r] = (struct part){r, sp};
						o.slice_arg = &part[r];
						o.dp_rank = d;
						l[r][d] = start(ds, o);
					}
				for (int64_t step = 0; step < 60; step++) {
					int64_t targets = 0, tokens = 0;
					const struct io_batch *b = NULL;

					for (int64_t m = 0; m < 2; m++)
						for (int d = 0; d < dp; d++) {
							int64_t end = 0;

							for (int r = 0; r < sp; r++) {
								ok(io_loader_next(l[r][d], &b, &err));
								o.dp_rank = d;
								check_row(ds, &o, b, step, m);
								assert_int_equal(b->t0, end);
								end = b->t1;
							}
							assert_int_equal(end, b->tokens);
							targets += b->row_targets;
							tokens += b->tokens;
						}
					assert_int_equal(b->step_targets, targets);
					assert_int_equal(b->step_tokens, tokens);
				}
				for (int r = 0; r < sp; r++)
					for (int d = 0; d < dp; d++)
						io_loader_destroy(l[r][d]);
			}
	io_dataset_close(ds);
}

/* Documents of exactly L tokens, so that a sample is a document and its first token says which. */
static void make_numbered(const char *dir, uint32_t n)
{
	struct io_pack_opts o = pack_opts(dir, L, IO_PACK_BFD, 70000);
	struct io_error err;
	struct io_packer *p;
	uint32_t ids[L - 1] = {0};

	o.shard_bytes = 20000;
	ok(io_packer_create(&o, &p, &err));
	for (uint32_t i = 0; i < n; i++) {
		ids[0] = i;
		ok(io_packer_add(p, ids, L - 1, &err));
	}
	ok(io_packer_finish(p, NULL, &err));
	io_packer_destroy(p);
}

/* deepspeedai/DeepSpeed#7484: a sequence-parallel loader that duplicated data. Over an epoch every sample comes exactly
 * once, whatever the layout, and each step's set of samples is the same for every layout. */
static void layouts_share_one_order(void **state)
{
	static const struct {
		int dp;
		int64_t B;
	} lay[] = {{1, 1}, {2, 1}, {1, 4}, {4, 1}, {2, 2}, {3, 4}, {6, 2}};
	enum { N = 120, G = 12 };
	unsigned char first[N / G][N];
	struct io_dataset *ds;
	struct io_error err;

	make_numbered(in(*state, "n"), N);
	ds = open_set(state, "n");
	for (size_t k = 0; k < sizeof(lay) / sizeof(lay[0]); k++) {
		unsigned char seen[N / G][N] = {{0}};

		for (int d = 0; d < lay[k].dp; d++) {
			struct io_loader *l = start(ds, (struct io_loader_opts){.seed = 3,
										.shuffle = 1,
										.global_batch = G,
										.micro_batch = lay[k].B,
										.dp_rank = d,
										.dp_size = lay[k].dp,
										.prefetch = 2});
			int64_t rows = N / lay[k].dp / lay[k].B;

			for (int64_t i = 0; i < rows; i++) {
				const struct io_batch *b;

				ok(io_loader_next(l, &b, &err));
				assert_int_equal(b->ndoc, lay[k].B);
				for (int64_t j = 0; j < b->ndoc; j++)
					seen[b->step][b->ids[b->cu[j]]]++;
			}
			io_loader_destroy(l);
		}
		if (k == 0)
			memcpy(first, seen, sizeof(first));
		assert_memory_equal(first, seen, sizeof(first));
		for (int i = 0; i < N; i++) {
			int sum = 0;

			for (int s = 0; s < N / G; s++)
				sum += seen[s][i];
			assert_int_equal(sum, 1);
		}
	}
	io_dataset_close(ds);
}

/* paiml/entrenar#294: a loader that starts over after a restart. */
static void resume_continues_the_stream(void **state)
{
	struct io_loader_opts o = {.seed = 4, .shuffle = 1, .global_batch = 6, .micro_batch = 2, .dp_rank = 1, .dp_size = 3,
				   .prefetch = 2};
	struct io_dataset *ds;
	struct io_loader *whole;
	struct io_error err;
	const struct io_batch *a, *b;

	make_dataset(in(*state, "ds"), 60, L, 3000, 2000, 2);
	ds = open_set(state, "ds");
	whole = start(ds, o);
	for (int64_t step = 0; step < 80; step++) {
		struct io_loader *l;

		ok(io_loader_next(whole, &a, &err));
		o.first_step = step;
		l = start(ds, o);
		ok(io_loader_next(l, &b, &err));
		assert_int_equal(b->step, step);
		assert_int_equal(a->tokens, b->tokens);
		assert_int_equal(a->step_targets, b->step_targets);
		assert_memory_equal(a->ids, b->ids, (size_t)a->tokens * 4);
		io_loader_destroy(l);
	}
	io_loader_destroy(whole);
	/* far away: no walk through the steps before */
	o.first_step = INT64_C(1) << 50;
	whole = start(ds, o);
	ok(io_loader_next(whole, &a, &err));
	assert_int_equal(a->step, o.first_step);
	check_row(ds, &o, a, o.first_step, 0);
	io_loader_destroy(whole);
	io_dataset_close(ds);
}

static void more_ranks_than_tokens(void **state)
{
	struct part part = {0, 200};
	struct io_loader_opts o = {.global_batch = 1, .micro_batch = 1, .dp_size = 1, .slice = even, .slice_arg = &part,
				   .prefetch = 1};
	struct io_dataset *ds;
	struct io_error err;
	const struct io_batch *b;

	make_numbered(in(*state, "n"), 5);
	ds = open_set(state, "n");
	for (part.rank = 0; part.rank < part.size; part.rank++) {
		struct io_loader *l = start(ds, o);

		ok(io_loader_next(l, &b, &err));
		assert_int_equal(b->t1 - b->t0, part.rank < L);
		check_row(ds, &o, b, 0, 0);
		io_loader_destroy(l);
	}
	io_dataset_close(ds);
}

static void bad_slice(void *arg, int64_t total, int64_t *t0, int64_t *t1)
{
	(void)arg;
	*t0 = 0;
	*t1 = total + 1;
}

static void a_wrong_slice_is_an_error(void **state)
{
	struct io_loader_opts o = {.global_batch = 1, .micro_batch = 1, .dp_size = 1, .slice = bad_slice, .prefetch = 1};
	struct io_dataset *ds;
	struct io_loader *l;
	struct io_error err;
	const struct io_batch *b;

	make_numbered(in(*state, "n"), 5);
	ds = open_set(state, "n");
	l = start(ds, o);
	refused(io_loader_next(l, &b, &err), "share of 64 tokens came out as 0 to 65");
	io_loader_destroy(l);
	io_dataset_close(ds);
}

static void destroy_while_prefetching(void **state)
{
	struct io_loader_opts o = {.seed = 1, .shuffle = 1, .global_batch = 8, .micro_batch = 4, .dp_size = 2, .prefetch = 16};
	struct io_dataset *ds;
	struct io_error err;

	make_dataset(in(*state, "ds"), 200, L, 3000, 2000, 3);
	ds = open_set(state, "ds");
	for (int i = 0; i < 200; i++) {
		struct io_loader *l = start(ds, o);
		const struct io_batch *b;

		for (int k = 0; k < i % 5; k++)
			ok(io_loader_next(l, &b, &err));
		io_loader_destroy(l);
	}
	io_loader_destroy(NULL);
	io_dataset_close(ds);
}

/* Where the tokens of the only shard begin. */
static int64_t tokens_at(const char *dir)
{
	struct io_manifest m;
	struct io_error err;
	int64_t off;

	ok(io__manifest_read(dir, &m, NULL, &err));
	off = m.shards[0].extents[0].off;
	io__manifest_free(&m);
	return off;
}

static void flip_byte(const char *path, int64_t off)
{
	int fd = open(path, O_RDWR);
	unsigned char c;

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &c, 1, off), 1);
	c ^= 0x10;
	assert_int_equal(pwrite(fd, &c, 1, off), 1);
	close(fd);
}

/* Damage done after the dataset was opened comes out of next(), after the rows before it, and stays. */
static void thread_errors_surface_at_next(void **state)
{
	struct io_loader_opts o = {.global_batch = 1, .micro_batch = 1, .dp_size = 1, .prefetch = 3};
	struct io_dataset *ds;
	struct io_loader *l;
	struct io_error err;
	const struct io_batch *b;

	make_numbered(in(*state, "n"), 10);
	ds = open_set(state, "n");
	flip_byte(in(*state, "n/shard-00000.h5"), tokens_at(in(*state, "n")) + 7 * L * 4 + 8);
	l = start(ds, o);
	for (int i = 0; i < 7; i++) {
		ok(io_loader_next(l, &b, &err));
		assert_int_equal(b->ids[0], i);
	}
	for (int i = 0; i < 3; i++) {
		refused(io_loader_next(l, &b, &err), "tokens of sample 7 do not match their hash");
		assert_int_equal(err.code, EBADMSG);
		assert_null(b);
	}
	io_loader_destroy(l);
	io_dataset_close(ds);
}

/* osaurus-ai/vmlx-swift#217: a short shard read as zeros. */
static void a_shard_cut_while_in_use(void **state)
{
	struct io_dataset *ds;
	struct io_error err;
	uint32_t ids[L];
	char *whole;
	size_t n;

	make_numbered(in(*state, "n"), 10);
	whole = get_file(in(*state, "n/shard-00000.h5"), &n);
	/* before any descriptor is open */
	ds = open_set(state, "n");
	assert_int_equal(truncate(in(*state, "n/shard-00000.h5"), (off_t)n - 1), 0);
	refused(io_dataset_read(ds, 0, 0, L, ids, &err), "changed while in use");
	io_dataset_close(ds);
	/* after */
	put_file(in(*state, "n/shard-00000.h5"), whole, n);
	ds = open_set(state, "n");
	ok(io_dataset_read(ds, 0, 0, L, ids, &err));
	assert_int_equal(truncate(in(*state, "n/shard-00000.h5"), tokens_at(in(*state, "n")) + 9 * L * 4 + 4), 0);
	ok(io_dataset_read(ds, 8, 0, L, ids, &err));
	refused(io_dataset_read(ds, 9, 0, L, ids, &err), "shard-00000.h5");
	/* a sample whose hash was right once is not hashed again, but never comes short either */
	assert_int_equal(truncate(in(*state, "n/shard-00000.h5"), tokens_at(in(*state, "n")) + 4), 0);
	refused(io_dataset_read(ds, 0, 0, L, ids, &err), "shard-00000.h5");
	io_dataset_close(ds);
	free(whole);
}

static void steady_state_allocates_nothing(void **state)
{
#ifdef __SANITIZE_ADDRESS__
	(void)state;
	skip(); /* the sanitizer owns malloc */
#else
	struct io_loader_opts o = {.seed = 1, .shuffle = 1, .global_batch = 8, .micro_batch = 2, .dp_size = 2, .prefetch = 2};
	struct io_dataset *ds;
	struct io_loader *l;
	struct io_error err;
	const struct io_batch *b;
	long before;

	make_dataset(in(*state, "ds"), 300, L, 3000, 2000, 3); /* more shards than descriptors are kept for */
	ds = open_set(state, "ds");
	l = start(ds, o);
	ok(io_loader_next(l, &b, &err));
	ok(io_loader_next(l, &b, &err));
	before = __atomic_load_n(&allocations, __ATOMIC_RELAXED);
	for (int i = 0; i < 2000; i++)
		ok(io_loader_next(l, &b, &err));
	assert_int_equal(__atomic_load_n(&allocations, __ATOMIC_RELAXED) - before, 0);
	io_loader_destroy(l);
	io_dataset_close(ds);
#endif
}

static void wrong_options_are_refused(void **state)
{
	struct io_loader_opts good = {.global_batch = 4, .micro_batch = 2, .dp_size = 2, .prefetch = 1}, o;
	struct io_dataset *ds;
	struct io_loader *l;
	struct io_error err;

	make_numbered(in(*state, "n"), 5);
	ds = open_set(state, "n");
#define wrong(field, value, text)                                                                                     \
	o = good;                                                                                                     \
	o.field = value;                                                                                              \
	refused(io_loader_create(ds, &o, &l, &err), text)
	wrong(global_batch, 6, "global batch of 6 samples is no multiple of micro-batch x data-parallel size = 2 x 2");
	wrong(global_batch, 0, "global batch of 0");
	wrong(micro_batch, 0, "micro-batch of 0");
	wrong(micro_batch, INT64_MAX, "global batch of 4 samples");
	wrong(dp_rank, 2, "data-parallel rank 2 of 2");
	wrong(dp_rank, -1, "data-parallel rank -1 of 2");
	wrong(first_step, -1, "first step -1");
	wrong(first_step, INT64_MAX, "first step");
	wrong(prefetch, 0, "prefetch of 0");
#undef wrong
	io_dataset_close(ds);
}

/* A global batch larger than the dataset takes samples again, in the next epoch's order. */
static void batch_larger_than_the_dataset(void **state)
{
	struct io_loader_opts o = {.seed = 2, .shuffle = 1, .global_batch = 14, .micro_batch = 7, .dp_size = 1, .prefetch = 1};
	struct io_dataset *ds;
	struct io_loader *l;
	struct io_error err;
	const struct io_batch *b;

	make_numbered(in(*state, "n"), 5);
	ds = open_set(state, "n");
	l = start(ds, o);
	for (int64_t i = 0; i < 20; i++) {
		ok(io_loader_next(l, &b, &err));
		check_row(ds, &o, b, i / 2, i % 2);
	}
	io_loader_destroy(l);
	io_dataset_close(ds);
}

/* pytorch/pytorch#11887. The dataset itself may be used on both sides; a loader's thread exists only in the parent. */
static void fork_after_open(void **state)
{
	struct io_loader_opts o = {.global_batch = 1, .micro_batch = 1, .dp_size = 1, .prefetch = 2};
	struct io_dataset *ds;
	struct io_loader *l;
	struct io_error err;
	const struct io_batch *b;
	uint32_t ids[L];
	int status = -1;
	pid_t pid;

	make_numbered(in(*state, "n"), 50);
	ds = open_set(state, "n");
	pid = fork();
	assert_true(pid >= 0);
	for (uint32_t round = 0; round < 20; round++)
		for (uint32_t i = 0; i < 50; i++)
			if (io_dataset_read(ds, i, 0, L, ids, &err) < 0 || ids[0] != i) {
				if (pid == 0)
					_exit(1);
				fail_msg("%s", err.text);
			}
	if (pid == 0)
		_exit(0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	l = start(ds, o);
	ok(io_loader_next(l, &b, &err));
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		int rc = io_loader_next(l, &b, &err);

		io_loader_destroy(l);
		_exit(rc == -1 && strstr(err.text, "before fork") ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	ok(io_loader_next(l, &b, &err));
	io_loader_destroy(l);
	io_dataset_close(ds);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, tmp_setup, tmp_teardown)
		T(rows_equal_the_dataset),
		T(layouts_share_one_order),
		T(resume_continues_the_stream),
		T(more_ranks_than_tokens),
		T(a_wrong_slice_is_an_error),
		T(destroy_while_prefetching),
		T(thread_errors_surface_at_next),
		T(a_shard_cut_while_in_use),
		T(steady_state_allocates_nothing),
		T(wrong_options_are_refused),
		T(batch_larger_than_the_dataset),
		T(fork_after_open),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
