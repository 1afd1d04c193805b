/* SPDX-License-Identifier: Apache-2.0 */
/* The order of samples: a bijection for every N, the same everywhere, different per epoch and seed, local. */
#include "tests/unit/io_test.h"
#include "io/io_loader.h"

static void check_epoch(uint64_t seed, int64_t n, int64_t epoch, int64_t *out)
{
	unsigned char *seen = calloc((size_t)n, 1);

	assert_non_null(seen);
	for (int64_t p = 0; p < n; p++) {
		int64_t i = io_order(seed, 1, n, epoch * n + p);

		if (i < 0 || i >= n)
			fail_msg("N %lld position %lld: sample %lld", (long long)n, (long long)p, (long long)i);
		if (seen[i]++)
			fail_msg("N %lld: sample %lld comes twice", (long long)n, (long long)i);
		if (out)
			out[p] = i;
	}
	free(seen);
}

/* grain's index_shuffle duplicates a value at max_index 65536 and 262144, so every power of two and its neighbours. */
static void bijective_around_powers_of_two(void **state)
{
	(void)state;
	for (int k = 0; k <= 19; k++)
		for (int64_t d = -1; d <= 1; d++) {
			int64_t n = (INT64_C(1) << k) + d;

			for (uint64_t seed = 0; n >= 1 && seed < 3; seed++)
				check_epoch(seed * 0x123456789abcdefu, n, (int64_t)seed, NULL);
		}
	for (int64_t n = 1; n <= 700; n++)
		check_epoch(7, n, 3, NULL);
	/* not a multiple of block or window, more than one window */
	check_epoch(1, 4096 * 3 + 64 * 5 + 17, 0, NULL);
	check_epoch(1, 4096 * 3 + 64 * 5, 1, NULL);
}

static void without_shuffle_is_identity(void **state)
{
	(void)state;
	for (int64_t p = 0; p < 1000; p++)
		assert_int_equal(io_order(99, 0, 300, p), p % 300);
}

static void out_of_range_is_refused(void **state)
{
	(void)state;
	assert_int_equal(io_order(1, 1, 0, 0), -1);
	assert_int_equal(io_order(1, 1, -5, 0), -1);
	assert_int_equal(io_order(1, 1, 10, -1), -1);
}

/* Pinned: a change of these numbers breaks the resume of every run in progress. */
static void golden_values(void **state)
{
	static const struct {
		uint64_t seed;
		int64_t n, p, want;
	} g[] = {
#include "tests/unit/order_golden.h"
	};
	(void)state;
	for (size_t i = 0; i < sizeof(g) / sizeof(g[0]); i++)
		if (io_order(g[i].seed, 1, g[i].n, g[i].p) != g[i].want)
			fail_msg("seed %llu N %lld p %lld gives %lld, was %lld", (unsigned long long)g[i].seed,
				 (long long)g[i].n, (long long)g[i].p,
				 (long long)io_order(g[i].seed, 1, g[i].n, g[i].p), (long long)g[i].want);
}

static int64_t same_places(uint64_t seed_a, int64_t epoch_a, uint64_t seed_b, int64_t epoch_b, int64_t n)
{
	int64_t same = 0;

	for (int64_t p = 0; p < n; p++)
		same += io_order(seed_a, 1, n, epoch_a * n + p) == io_order(seed_b, 1, n, epoch_b * n + p);
	return same;
}

/* Two random permutations agree in 1 place on average (Poisson): 12 or more has probability below 1e-8. */
static void seeds_and_epochs_differ(void **state)
{
	(void)state;
	for (int64_t k = 1; k < 20; k++) {
		assert_in_range(same_places(5, 0, 5, k, 3000), 0, 12);
		assert_in_range(same_places(5, 0, (uint64_t)(5 + k), 0, 3000), 0, 12);
		assert_in_range(same_places((uint64_t)k, 0, 0, k, 3000), 0, 12);
	}
}

/* Every sample comes early about as often as any other: over 4000 epochs of 40 samples each (place, sample) pair has 100
 * expected hits, standard deviation 10; 40 to 160 is six of them. */
static void no_place_is_preferred(void **state)
{
	static int hits[40][40];

	(void)state;
	for (int64_t p = 0; p < 40 * 4000; p++)
		hits[p % 40][io_order(11, 1, 40, p)]++;
	for (int p = 0; p < 40; p++)
		for (int i = 0; i < 40; i++)
			assert_in_range(hits[p][i], 40, 160);
}

/* All 6 orders of 3 samples come up within 400 epochs. */
static void small_n_reaches_every_permutation(void **state)
{
	int seen[27] = {0}, kinds = 0;

	(void)state;
	for (int64_t e = 0; e < 400; e++) {
		int64_t code = io_order(3, 1, 3, 3 * e) * 9 + io_order(3, 1, 3, 3 * e + 1) * 3 + io_order(3, 1, 3, 3 * e + 2);

		kinds += !seen[code]++;
	}
	assert_int_equal(kinds, 6);
}

/* Reads of one window stay in 64 blocks of 64 neighbours (and the two a short block shifts): random access is bounded. */
static void windows_are_local(void **state)
{
	const int64_t n = 64 * 64 * 9 + 30;
	unsigned char *blocks = malloc((size_t)n / 64 + 1);

	(void)state;
	assert_non_null(blocks);
	for (int64_t w = 0; w * 4096 < n; w++) {
		int used = 0;

		memset(blocks, 0, (size_t)n / 64 + 1);
		for (int64_t p = w * 4096; p < n && p < (w + 1) * 4096; p++) {
			int64_t b = io_order(17, 1, n, p) / 64;

			used += !blocks[b];
			blocks[b] = 1;
		}
		assert_in_range(used, 1, 66);
	}
	free(blocks);
}

static void large_n_stays_in_range(void **state)
{
	const int64_t sizes[] = {(INT64_C(1) << 40) - 1, INT64_C(1) << 40, (INT64_C(1) << 40) + 1, (INT64_C(1) << 55) + 12345};
	uint64_t s = 1;

	(void)state;
	for (size_t k = 0; k < 4; k++)
		for (int i = 0; i < 2000; i++) {
			int64_t p = (int64_t)(next_random(&s) >> 1);
			int64_t v = io_order(5, 1, sizes[k], p);

			assert_true(v >= 0 && v < sizes[k]);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bijective_around_powers_of_two), cmocka_unit_test(without_shuffle_is_identity),
		cmocka_unit_test(out_of_range_is_refused),	  cmocka_unit_test(golden_values),
		cmocka_unit_test(seeds_and_epochs_differ),	  cmocka_unit_test(no_place_is_preferred),
		cmocka_unit_test(small_n_reaches_every_permutation), cmocka_unit_test(windows_are_local),
		cmocka_unit_test(large_n_stays_in_range),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
