/* SPDX-License-Identifier: Apache-2.0 */
/* The environment contract: parsing, completion of sizes with their texts, and the place of every rank. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "libsp/sp_env.h"

static char err[256];

static void assert_text(const char *want)
{
	if (strcmp(err, want) != 0)
		fail_msg("message was:\n  %s\nexpected:\n  %s", err, want);
}

static int parse(const char *text, int *v)
{
	return sp_env_parse_int("--sp-size", text, 1, 64, v, err, sizeof(err));
}

static void test_parse_int_accepts_the_range(void **state)
{
	char text[16];
	int v = -1;

	(void)state;
	for (int i = 1; i <= 64; i++) {
		snprintf(text, sizeof(text), "%d", i);
		assert_int_equal(parse(text, &v), 0);
		assert_int_equal(v, i);
	}
	assert_int_equal(sp_env_parse_int("x", "0", 0, 5, &v, err, sizeof(err)), 0);
	assert_int_equal(v, 0);
	assert_int_equal(sp_env_parse_int("x", "2147483647", 0, INT32_MAX, &v, err, sizeof(err)), 0);
	assert_int_equal(v, INT32_MAX);
}

static void test_parse_int_refuses_everything_else(void **state)
{
	static const char *bad[] = {"0",   "65",  "-1",	 "+4",	     " 4",	  "4 ",	  "4x",
				    "0x4", "04",  "00",	 "4.0",	     "4e0",	  "four", "18446744073709551620",
				    "4,2", "\t4", "4\n", "\xd9\xa4", "4294967300"};
	int v = 77;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		err[0] = '\0';
		if (parse(bad[i], &v) != -1)
			fail_msg("'%s' was accepted", bad[i]);
		assert_int_equal(v, 77);
		assert_non_null(strstr(err, "--sp-size="));
		assert_non_null(strstr(err, "from 1 to 64"));
		assert_null(strchr(err, '\n'));
	}
	assert_int_equal(parse("4x", &v), -1);
	assert_text("--sp-size=4x is not valid: give a whole number from 1 to 64");
	assert_int_equal(parse("", &v), -1);
	assert_text("--sp-size has no value: give a whole number from 1 to 64");
	assert_int_equal(parse(NULL, &v), -1);
	assert_text("--sp-size has no value: give a whole number from 1 to 64");
}

static void test_messages_stay_short(void **state)
{
	char longtext[5000], small[12];
	int v = 0;

	(void)state;
	memset(longtext, '9', sizeof(longtext) - 1);
	longtext[sizeof(longtext) - 1] = '\0';
	assert_int_equal(parse(longtext, &v), -1);
	assert_text("--sp-size=9999999999999999999999999999999999999999... is not valid: "
		    "give a whole number from 1 to 64");
	assert_int_equal(sp_env_parse_int("--sp-size", "x", 1, 2, &v, small, sizeof(small)), -1);
	assert_string_equal(small, "--sp-size=x");
	assert_int_equal(sp_env_parse_int("--sp-size", "x", 1, 2, &v, NULL, 0), -1);
}

static void test_tasks_per_node(void **state)
{
	static const struct {
		const char *text;
		int n, counts[8];
	} good[] = {
		{"4", 1, {4}},
		{"6,1(x2)", 3, {6, 1, 1}},
		{"4(x2),3", 3, {4, 4, 3}},
		{"2(x1)", 1, {2}},
		{"1(x3),2,3(x2)", 6, {1, 1, 1, 2, 3, 3}},
		{"65536", 1, {65536}},
		{"1(x8)", 8, {1, 1, 1, 1, 1, 1, 1, 1}},
	};
	int counts[9], n;

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		memset(counts, 0xee, sizeof(counts));
		assert_int_equal(sp_env_parse_tasks_per_node(good[i].text, counts, 8, &n, err, sizeof(err)), 0);
		assert_int_equal(n, good[i].n);
		assert_memory_equal(counts, good[i].counts, sizeof(int) * (size_t)n);
		assert_int_equal(counts[8], (int)0xeeeeeeee); /* nothing written past max */
	}
}

static void test_tasks_per_node_refused(void **state)
{
	static const char *bad[] = {"",	      ",",	   "4,",     ",4",     "4(x)",	      "4(x0)",
				    "4(2)",   "4(x2",	   "4(x2)3", "0",      "-1",	      "4 ,3",
				    "65537",  "x",	   "4(x2),", "4,,4",   "4(x-1)",      "4((x2)",
				    "4(x2))", "4(x2)(x2)", "04",     "4(x02)", "4(x99999999)"};
	int counts[8], n = -7;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		if (sp_env_parse_tasks_per_node(bad[i], counts, 8, &n, err, sizeof(err)) != -1)
			fail_msg("'%s' was accepted", bad[i]);
		assert_int_equal(n, -7);
		assert_non_null(strstr(err, "as in 4(x2),3"));
	}
	assert_int_equal(sp_env_parse_tasks_per_node(NULL, counts, 8, &n, err, sizeof(err)), -1);
	assert_int_equal(sp_env_parse_tasks_per_node("1(x9)", counts, 8, &n, err, sizeof(err)), -1);
	assert_text("tasks per node '1(x9)' names more than 8 nodes; at most 8 are allowed");
	assert_int_equal(sp_env_parse_tasks_per_node("1(x8),1", counts, 8, &n, err, sizeof(err)), -1);
	assert_int_equal(sp_env_parse_tasks_per_node("4", counts, 0, &n, err, sizeof(err)), -1);
}

static void test_product(void **state)
{
	(void)state;
	assert_int_equal(sp_env_product(&(struct sp_sizes){0}), 1);
	assert_int_equal(sp_env_product(&(struct sp_sizes){.sp = 4}), 4);
	assert_int_equal(sp_env_product(&(struct sp_sizes){4, 3, 2, 5}), 120);
	assert_int_equal(sp_env_product(&(struct sp_sizes){256, 1, 256, 1}), 65536);
	assert_int_equal(sp_env_product(&(struct sp_sizes){256, 1, 256, 2}), -1);
	assert_int_equal(sp_env_product(&(struct sp_sizes){65536, 65536, 65536, 65536}), -1);
	assert_int_equal(sp_env_product(&(struct sp_sizes){INT32_MAX, INT32_MAX, 1, 1}), -1);
}

static void expect_sizes(struct sp_sizes in, int64_t world, struct sp_sizes want)
{
	err[0] = '\0';
	if (sp_env_complete(&in, world, err, sizeof(err)) != 0)
		fail_msg("refused: %s", err);
	assert_memory_equal(&in, &want, sizeof(in));
}

static void test_complete_fills(void **state)
{
	(void)state;
	expect_sizes((struct sp_sizes){0}, 6, (struct sp_sizes){1, 1, 1, 6});
	expect_sizes((struct sp_sizes){0}, 0, (struct sp_sizes){1, 1, 1, 1});
	expect_sizes((struct sp_sizes){.sp = 4}, 0, (struct sp_sizes){4, 1, 1, 1});
	expect_sizes((struct sp_sizes){.sp = 4}, 8, (struct sp_sizes){4, 1, 1, 2});
	expect_sizes((struct sp_sizes){.sp = 2, .dp_shard = 3}, 12, (struct sp_sizes){2, 1, 3, 2});
	expect_sizes((struct sp_sizes){2, 2, 2, 2}, 16, (struct sp_sizes){2, 2, 2, 2});
	expect_sizes((struct sp_sizes){.dp_replicate = 6}, 6, (struct sp_sizes){1, 1, 1, 6});
}

static void expect_refusal(struct sp_sizes in, int64_t world, const char *text)
{
	struct sp_sizes before = in;

	assert_int_equal(sp_env_complete(&in, world, err, sizeof(err)), -1);
	assert_text(text);
	assert_memory_equal(&in, &before, sizeof(in)); /* untouched on failure */
}

static void test_complete_names_what_fits(void **state)
{
	(void)state;
	expect_refusal(
		(struct sp_sizes){.sp = 4}, 6,
		"sp_size 4 needs a multiple of 4 tasks, this step has 6: use 4 or 8 tasks, or sp_size 3 or 6");
	expect_refusal((struct sp_sizes){.sp = 4}, 3,
		       "sp_size 4 needs a multiple of 4 tasks, this step has 3: use 4 tasks, or sp_size 3");
	expect_refusal((struct sp_sizes){.sp = 4}, 1,
		       "sp_size 4 needs a multiple of 4 tasks, this step has 1: use 4 tasks, or sp_size 1");
	expect_refusal((struct sp_sizes){.sp = 4, .dp_shard = 2}, 12,
		       "sp_size 4 x dp_shard_size 2 needs a multiple of 8 tasks, this step has 12: "
		       "use 8 or 16 tasks, or sp_size 3 or 6");
	expect_refusal((struct sp_sizes){.sp = 4, .dp_shard = 5}, 12,
		       "sp_size 4 x dp_shard_size 5 needs a multiple of 20 tasks, this step has 12: use 20 tasks");
	expect_refusal((struct sp_sizes){.sp = 4, .dp_replicate = 2}, 12,
		       "sp_size 4 x dp_replicate_size 2 needs exactly 8 tasks, this step has 12: "
		       "use 8 tasks, or dp_replicate_size 3");
	expect_refusal((struct sp_sizes){.sp = 4, .dp_replicate = 2}, 6,
		       "sp_size 4 x dp_replicate_size 2 needs exactly 8 tasks, this step has 6: "
		       "use 8 tasks, or sp_size 3");
	expect_refusal((struct sp_sizes){.dp_replicate = 2}, 3,
		       "dp_replicate_size 2 needs exactly 2 tasks, this step has 3: "
		       "use 2 tasks, or dp_replicate_size 3");
	expect_refusal((struct sp_sizes){.dp_replicate = 1}, 2,
		       "dp_replicate_size 1 needs exactly 1 task, this step has 2: "
		       "use 1 task, or dp_replicate_size 2");
	expect_refusal((struct sp_sizes){.dp_shard = 4}, 6,
		       "dp_shard_size 4 needs a multiple of 4 tasks, this step has 6: use 4 or 8 tasks");
	expect_refusal((struct sp_sizes){.sp = 60000, .cp = 2}, 0,
		       "sp_size 60000 x cp_size 2 is more than 65536 tasks: make the sizes smaller");
	expect_refusal((struct sp_sizes){.sp = -1}, 4,
		       "a mesh size is negative: give whole numbers from 1 to 65536");
	expect_refusal((struct sp_sizes){.sp = 4}, 65540, "65540 tasks are not supported: use 1 to 65536");
	expect_refusal((struct sp_sizes){.sp = 40000}, 50000,
		       "sp_size 40000 needs a multiple of 40000 tasks, this step has 50000: "
		       "use 40000 tasks, or sp_size 25000 or 50000");
}

/* Whatever complete() advises must itself be accepted. */
static void test_complete_advice_works(void **state)
{
	(void)state;
	for (int sp = 0; sp <= 7; sp++)
		for (int shard = 0; shard <= 4; shard++)
			for (int rep = 0; rep <= 3; rep++)
				for (int world = 1; world <= 40; world++) {
					struct sp_sizes in = {.sp = sp, .dp_shard = shard, .dp_replicate = rep},
							again;
					int a, b;
					const char *p;

					if (sp_env_complete(&in, world, err, sizeof(err)) == 0) {
						assert_int_equal(sp_env_product(&in), world);
						continue;
					}
					p = strstr(err, ": use ");
					assert_non_null(p);
					again = in;
					b = 0;
					assert_true(sscanf(p, ": use %d or %d task", &a, &b) >= 1);
					assert_int_equal(sp_env_complete(&again, a, NULL, 0), 0);
					again = in;
					if (b > 0)
						assert_int_equal(sp_env_complete(&again, b, NULL, 0), 0);
					p = strstr(err, ", or sp_size ");
					if (p != NULL) {
						b = 0;
						assert_true(sscanf(p, ", or sp_size %d or %d", &a, &b) >= 1);
						again = in;
						again.sp = a;
						assert_int_equal(sp_env_complete(&again, world, NULL, 0), 0);
						again = in;
						again.sp = b;
						if (b > 0)
							assert_int_equal(sp_env_complete(&again, world, NULL, 0),
									 0);
					}
					p = strstr(err, ", or dp_replicate_size ");
					if (p != NULL) {
						again = in;
						assert_int_equal(sscanf(p, ", or dp_replicate_size %d", &a), 1);
						again.dp_replicate = a;
						assert_int_equal(sp_env_complete(&again, world, NULL, 0), 0);
					}
				}
}

/*
 * The naive model: deal tasks out by hand. Every node keeps a queue of its tasks; as long as a node's queue holds
 * sp tasks, they form the next group; what is left is queued up in node order and cut into groups.
 */
struct model {
	int node[4096], local[4096];
	int spanning;
};

static void model_fill(struct model *m, int sp, const int *counts, int n)
{
	int taken[64] = {0}, slot = 0, left_node[4096], left_local[4096], nleft = 0;

	m->spanning = 0;
	for (int i = 0; i < n; i++)
		while (counts[i] - taken[i] >= sp)
			for (int k = 0; k < sp; k++, slot++) {
				m->node[slot] = i;
				m->local[slot] = taken[i]++;
			}
	for (int i = 0; i < n; i++)
		while (taken[i] < counts[i]) {
			left_node[nleft] = i;
			left_local[nleft++] = taken[i]++;
		}
	for (int k = 0; k < nleft; k++, slot++) {
		m->node[slot] = left_node[k];
		m->local[slot] = left_local[k];
	}
	for (int g = 0; g < slot / sp; g++)
		for (int k = 1; k < sp; k++)
			if (m->node[g * sp + k] != m->node[g * sp]) {
				m->spanning++;
				break;
			}
}

static void check_against_model(const struct sp_sizes *s, const int *counts, int n, int world)
{
	static struct model m;
	static int node_of[4096], local_of[4096];

	model_fill(&m, s->sp, counts, n);
	assert_int_equal(sp_env_spanning_groups(s, counts, n), m.spanning);
	assert_int_equal(sp_env_place_all(s, counts, n, node_of, local_of), 0);
	assert_memory_equal(node_of, m.node, sizeof(int) * (size_t)world);
	assert_memory_equal(local_of, m.local, sizeof(int) * (size_t)world);
	for (int slot = 0; slot < world; slot++) {
		struct sp_coord c;
		int spans = -1, group = slot / s->sp * s->sp, crosses = 0;

		assert_int_equal(sp_env_place(s, counts, n, m.node[slot], m.local[slot], &c, &spans), 0);
		assert_int_equal(c.slot, slot);
		assert_int_equal(((c.dp_replicate * s->dp_shard + c.dp_shard) * s->cp + c.cp) * s->sp + c.sp,
				 slot);
		assert_in_range(c.sp, 0, s->sp - 1);
		assert_in_range(c.cp, 0, s->cp - 1);
		assert_in_range(c.dp_shard, 0, s->dp_shard - 1);
		assert_in_range(c.dp_replicate, 0, s->dp_replicate - 1);
		for (int k = 0; k < s->sp; k++)
			crosses |= m.node[group + k] != m.node[group];
		assert_int_equal(spans, crosses);
	}
}

static void test_place_against_model(void **state)
{
	unsigned seed = 12345;

	(void)state;
	for (int round = 0; round < 4000; round++) {
		struct sp_sizes s;
		int counts[64], n, world, most, fit = 0;

		s.sp = 1 + rand_r(&seed) % 8;
		s.cp = 1 + rand_r(&seed) % 3;
		s.dp_shard = 1 + rand_r(&seed) % 4;
		s.dp_replicate = 1 + rand_r(&seed) % 4;
		world = (int)sp_env_product(&s);
		/* Random cuts of `world` tasks into nodes: equal, uneven, one-task nodes. */
		most = 1 + rand_r(&seed) % 12;
		for (n = 0; n < 63 && fit < world; n++) {
			counts[n] = rand_r(&seed) % 3 == 0 ? 1 : 1 + rand_r(&seed) % most;
			if (counts[n] > world - fit)
				counts[n] = world - fit;
			fit += counts[n];
		}
		if (fit < world)
			counts[n++] = world - fit;
		check_against_model(&s, counts, n, world);
	}
}

static void test_place_drawing_of_the_header(void **state)
{
	static const int counts[2] = {3, 3}, slots[2][3] = {{0, 1, 4}, {2, 3, 5}};
	struct sp_sizes s = {.sp = 2, .cp = 1, .dp_shard = 1, .dp_replicate = 3};
	struct sp_coord c;

	(void)state;
	for (int node = 0; node < 2; node++)
		for (int l = 0; l < 3; l++) {
			assert_int_equal(sp_env_place(&s, counts, 2, node, l, &c, NULL), 0);
			assert_int_equal(c.slot, slots[node][l]);
		}
	assert_int_equal(sp_env_spanning_groups(&s, counts, 2), 1);
}

static void test_place_refuses(void **state)
{
	struct sp_sizes s = {.sp = 2, .cp = 1, .dp_shard = 1, .dp_replicate = 3}, t;
	int counts[2] = {3, 3}, wrong[2] = {3, 2}, negative[2] = {7, -1}, a[8], b[8];
	struct sp_coord c;

	(void)state;
	assert_int_equal(sp_env_place(&s, wrong, 2, 0, 0, &c, NULL), -1);
	assert_int_equal(sp_env_place(&s, negative, 2, 0, 0, &c, NULL), -1);
	assert_int_equal(sp_env_place(&s, counts, 2, 2, 0, &c, NULL), -1);
	assert_int_equal(sp_env_place(&s, counts, 2, -1, 0, &c, NULL), -1);
	assert_int_equal(sp_env_place(&s, counts, 2, 0, 3, &c, NULL), -1);
	assert_int_equal(sp_env_place(&s, counts, 2, 0, -1, &c, NULL), -1);
	assert_int_equal(sp_env_place(&s, counts, 0, 0, 0, &c, NULL), -1);
	for (int i = 0; i < 4; i++) {
		t = s;
		*(i == 0 ? &t.sp : i == 1 ? &t.cp : i == 2 ? &t.dp_shard : &t.dp_replicate) = 0; /* incomplete */
		assert_int_equal(sp_env_place(&t, counts, 2, 0, 0, &c, NULL), -1);
	}
	assert_int_equal(sp_env_place_all(&s, wrong, 2, a, b), -1);
	assert_int_equal(sp_env_spanning_groups(&s, wrong, 2), -1);
}

static void test_place_at_the_limits(void **state)
{
	static int counts[SP_ENV_MAX_NODES];
	struct sp_sizes s = {.sp = 65536, .cp = 1, .dp_shard = 1, .dp_replicate = 1};
	struct sp_coord c;
	int spans;

	(void)state;
	for (int i = 0; i < SP_ENV_MAX_NODES; i++)
		counts[i] = 1;
	assert_int_equal(sp_env_place(&s, counts, SP_ENV_MAX_NODES, 65535, 0, &c, &spans), 0);
	assert_int_equal(c.sp, 65535);
	assert_int_equal(spans, 1);
	counts[0] = 65536;
	assert_int_equal(sp_env_place(&s, counts, 1, 0, 65535, &c, &spans), 0);
	assert_int_equal(c.sp, 65535);
	assert_int_equal(spans, 0);
	/* A sum past 2^31 is a misfit, not an overflow. */
	for (int i = 0; i < SP_ENV_MAX_NODES; i++)
		counts[i] = 65536;
	assert_int_equal(sp_env_place(&s, counts, SP_ENV_MAX_NODES, 0, 0, &c, NULL), -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parse_int_accepts_the_range),
		cmocka_unit_test(test_parse_int_refuses_everything_else),
		cmocka_unit_test(test_messages_stay_short),
		cmocka_unit_test(test_tasks_per_node),
		cmocka_unit_test(test_tasks_per_node_refused),
		cmocka_unit_test(test_product),
		cmocka_unit_test(test_complete_fills),
		cmocka_unit_test(test_complete_names_what_fits),
		cmocka_unit_test(test_complete_advice_works),
		cmocka_unit_test(test_place_against_model),
		cmocka_unit_test(test_place_drawing_of_the_header),
		cmocka_unit_test(test_place_refuses),
		cmocka_unit_test(test_place_at_the_limits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
