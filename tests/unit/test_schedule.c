/* SPDX-License-Identifier: Apache-2.0 */
/* Learning-rate schedules against Hugging Face get_scheduler (transformers 5.24, learning rate 2e-3; values printed with repr).
 * Tolerance: 2 ulp of the largest value. cos() of another libm may differ in the last place, nothing else can. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "trainer/schedule.h"

static const struct golden {
	enum tr_lr_type type;
	int64_t warmup, total;
	double min_rate;
	int n;
	double lr[12];
} golden[] = {
	{TR_LR_LINEAR, 0, 10, 0, 12, {0.002, 0.0018000000000000002, 0.0016, 0.0014, 0.0012, 0.001, 0.0008, 0.0006, 0.0004,
				      0.0002, 0.0, 0.0}},
	{TR_LR_LINEAR, 3, 10, 0, 12, {0.0, 0.0006666666666666666, 0.0013333333333333333, 0.002, 0.0017142857142857142,
				      0.0014285714285714286, 0.0011428571428571427, 0.0008571428571428571,
				      0.0005714285714285714, 0.0002857142857142857, 0.0, 0.0}},
	{TR_LR_LINEAR, 5, 5, 0, 7, {0.0, 0.0004, 0.0008, 0.0012, 0.0016, 0.0, 0.0}},
	{TR_LR_COSINE, 0, 7, 0, 9, {0.002, 0.001900968867902419, 0.0016234898018587336, 0.0012225209339563144,
				    0.0007774790660436857, 0.0003765101981412665, 9.903113209758097e-05, 0.0,
				    9.903113209758086e-05}},
	{TR_LR_COSINE, 4, 9, 0, 11, {0.0, 0.0005, 0.001, 0.0015, 0.002, 0.0018090169943749475, 0.0013090169943749475,
				     0.0006909830056250527, 0.00019098300562505265, 0.0, 0.00019098300562505244}},
	{TR_LR_CONSTANT, 0, 3, 0, 5, {0.002, 0.002, 0.002, 0.002, 0.002}},
	{TR_LR_CONSTANT, 2, 3, 0, 3, {0.002, 0.002, 0.002}}, /* constant ignores warm-up */
	{TR_LR_CONSTANT_WARMUP, 3, 6, 0, 8, {0.0, 0.0006666666666666666, 0.0013333333333333333, 0.002, 0.002, 0.002, 0.002,
					     0.002}},
	{TR_LR_COSINE_MIN, 2, 8, 0.1, 10, {0.0, 0.001, 0.002, 0.0018794228634059949, 0.0015500000000000002, 0.0011,
					   0.0006500000000000003, 0.00032057713659400515, 0.0002, 0.00032057713659400526}},
};

static void equals_hugging_face(void **state)
{
	(void)state;
	for (size_t g = 0; g < sizeof golden / sizeof golden[0]; g++) {
		struct tr_schedule s = {.type = golden[g].type,
					.learning_rate = 2e-3,
					.min_lr_rate = golden[g].min_rate,
					.warmup = golden[g].warmup,
					.total = golden[g].total};
		for (int k = 0; k < golden[g].n; k++) {
			double lr = tr_schedule_lr(&s, k);
			if (fabs(lr - golden[g].lr[k]) > 2 * 4.4e-19)
				fail_msg("case %zu step %d: %.17g, expected %.17g", g, k, lr, golden[g].lr[k]);
		}
	}
}

static void large_steps_do_not_overflow(void **state)
{
	struct tr_schedule s = {.type = TR_LR_LINEAR, .learning_rate = 1, .warmup = 0, .total = INT64_C(1) << 52};

	(void)state;
	assert_true(tr_schedule_factor(&s, 0) == 1.0);
	assert_true(tr_schedule_factor(&s, s.total / 2) == 0.5);
	assert_true(tr_schedule_factor(&s, s.total) == 0.0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(equals_hugging_face),
		cmocka_unit_test(large_steps_do_not_overflow),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
