/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>

#include "tests/unit/ckpt_fixture.h"

static void test_round_trip(void **state)
{
	const int parts[] = {1, 2, 3, 7, 64};
	struct io_error err;
	int64_t *steps, n;

	ok(io_ckpt_list(in(*state, "none"), &steps, &n, &err));
	assert_int_equal(n, 0);
	free(steps);
	for (int i = 0; i < 5; i++) {
		ok(fix_save(in(*state, "c"), 100 * i, parts[i], 11, &err));
		/* same cuts (whole slices), other cuts, everything at once */
		ok(fix_check(in(*state, "c"), 100 * i, parts[i], 11, &err));
		ok(fix_check(in(*state, "c"), 100 * i, parts[4 - i], 5, &err));
		ok(fix_check(in(*state, "c"), 100 * i, 1, 5, &err));
	}
	ok(io_ckpt_list(in(*state, "c"), &steps, &n, &err));
	assert_int_equal(n, 5);
	for (int i = 0; i < 5; i++)
		assert_int_equal(steps[i], 400 - 100 * i);
	free(steps);
	/* the folder holds what io_ckpt.h says and nothing else */
	char cmd[4400];
	snprintf(cmd, sizeof(cmd),
		 "test \"$(ls -A '%s/c/step-00000100' | tr '\\n' ' ')\" = 'manifest.json part-00000.safetensors "
		 "part-00001.safetensors trainer_state.json '",
		 (char *)*state);
	assert_int_equal(system(cmd), 0);
}

struct job {
	pthread_t th;
	const char *root;
	const struct fix_cuts *c;
	int p, rc;
	struct io_error err;
};

static void *run_job(void *arg)
{
	struct job *j = arg;

	j->rc = fix_write_part(j->root, 7, "t", j->c, j->p, &j->err);
	return NULL;
}

/* Virtual ranks: every part by its own thread at once. */
static void test_threads(void **state)
{
	enum { P = 8 };
	struct job job[P];
	struct fix_cuts c;
	struct io_error err;

	fix_cut(&c, P, 21);
	ok(io_ckpt_begin(*state, 7, "t", 0, &err));
	for (int p = 0; p < P; p++) {
		job[p] = (struct job){.root = *state, .c = &c, .p = p};
		assert_int_equal(pthread_create(&job[p].th, NULL, run_job, &job[p]), 0);
	}
	for (int p = 0; p < P; p++) {
		pthread_join(job[p].th, NULL);
		if (job[p].rc != 0)
			fail_msg("%s", job[p].err.text);
	}
	char *text = fix_state(7);
	ok(io_ckpt_publish(*state, 7, "t", P, text, &err));
	free(text);
	ok(fix_check(*state, 7, 3, 2, &err));
}

/* The same state in the same parts gives the same bytes. */
static void test_same_bytes(void **state)
{
	struct io_error err;
	char cmd[8500];

	ok(fix_save(in(*state, "a"), 5, 3, 1, &err));
	ok(fix_save(in(*state, "b"), 5, 3, 1, &err));
	snprintf(cmd, sizeof(cmd), "diff -r '%s/a' '%s/b'", (char *)*state, (char *)*state);
	assert_int_equal(system(cmd), 0);
}

/* Parts are ordinary safetensors files. */
static void test_parts_are_safetensors(void **state)
{
	struct io_error err;
	struct io_st *s;
	struct fix_cuts c;
	char name[64];

	ok(fix_save(*state, 5, 3, 9, &err));
	fix_cut(&c, 3, 9);
	ok(io_st_open(in(*state, "step-00000005/part-00001.safetensors"), &s, &err));
	snprintf(name, sizeof(name), "big@%" PRId64 "-%" PRId64, c.cut[6][1], c.cut[6][2]);
	const struct io_tensor *t = io_st_find(s, name);
	assert_non_null(t);
	assert_int_equal(t->count, c.cut[6][2] - c.cut[6][1]);
	io_st_close(s);
}

static void test_arguments(void **state)
{
	static const float v[4] = {1, 2, 3, 4};
	struct io_ckpt_slice s = {"t", IO_F32, 1, {4}, 0, 4, v};
	struct io_ckpt_slice two[2];
	const char *root = *state;
	struct io_error err;
	struct io_ckpt *c;
	int64_t *steps, n;

	refused(io_ckpt_begin(root, -1, "t", 0, &err), "not a checkpoint step");
	refused(io_ckpt_begin(root, INT64_MAX, "t", 0, &err), "not a checkpoint step");
	const char *tokens[] = {"", "A", "a/b", "..", "a b", "abcdefghijklmnopqrstuvwxyz0123456", NULL};
	for (int i = 0; i < 7; i++)
		refused(io_ckpt_begin(root, 1, tokens[i], 0, &err), "[0-9a-z]");
	refused(io_ckpt_begin(root, 1, "t", -5, &err), "impossible");
	refused(io_ckpt_begin(root, 1, "t", INT64_MAX / 2, &err), "free some space");
	assert_int_equal(err.code, ENOSPC);
	refused(io_ckpt_begin(root, 1, "t", INT64_MAX, &err), "free some space");
	refused(io_ckpt_write_part(root, 1, "t", 0, &s, 1, &err), "part-00000.safetensors: cannot create");
	ok(io_ckpt_begin(root, 1, "t", 0, &err));
	refused(io_ckpt_write_part(root, 1, "t", -1, &s, 1, &err), "part -1");
	refused(io_ckpt_write_part(root, 1, "t", 1000000, &s, 1, &err), "part 1000000");
	refused(io_ckpt_write_part(root, 1, "t", 0, &s, -1, &err), "-1 slices");
#define BAD(field, value, text)                                                                                   \
	do {                                                                                                      \
		struct io_ckpt_slice b = s;                                                                       \
		b.field = value;                                                                                  \
		refused(io_ckpt_write_part(root, 1, "t", 0, &b, 1, &err), text);                                  \
	} while (0)
	BAD(tensor, NULL, "name");
	BAD(tensor, "", "name");
	BAD(tensor, "\xff", "UTF-8");
	BAD(dtype, (enum io_dtype)50, "element type");
	BAD(ndim, 9, "dimensions");
	BAD(ndim, -1, "dimensions");
	BAD(dims[0], -4, "negative");
	BAD(dims[0], 3, "not a range");
	BAD(begin, -1, "not a range");
	BAD(begin, 5, "not a range");
	BAD(end, 5, "not a range");
	BAD(data, NULL, "without data");
#undef BAD
	two[0] = two[1] = s;
	refused(io_ckpt_write_part(root, 1, "t", 0, two, 2, &err), "twice");
	two[0].end = two[1].begin = 2;
	two[1].dims[0] = 5;
	refused(io_ckpt_write_part(root, 1, "t", 0, two, 2, &err), "different element types or shapes");
	refused(io_ckpt_publish(root, 1, "t", 0, "{}", &err), "parts");
	refused(io_ckpt_publish(root, 1, "t", 1, NULL, &err), "not JSON");
	refused(io_ckpt_publish(root, 1, "t", 1, "{", &err), "not JSON");
	refused(io_ckpt_retain(root, 0, 0, &err), "at least 1");
	refused(io_ckpt_retain(root, 1, -1, &err), "at least 1");
	refused(io_ckpt_open(root, 1, &c, &err), "no checkpoint of step 1");
	assert_int_equal(err.code, ENOENT);
	refused(io_ckpt_open(in(root, "none"), 1, &c, &err), "No such file");
	refused(io_ckpt_open(root, -1, &c, &err), "not a checkpoint step");
	refused(io_ckpt_quarantine(root, 1, &err), "no checkpoint of step 1");
	put_file(in(root, "file"), "x", 1);
	refused(io_ckpt_begin(in(root, "file"), 1, "t", 0, &err), "cannot make the folder");
	refused(io_ckpt_list(in(root, "file"), &steps, &n, &err), "cannot open");
	io_ckpt_discard(root, 1, "t");
	io_ckpt_discard(root, 1, "../..");
	assert_int_equal(access(in(root, "step-00000001.tmp-t"), F_OK), -1);
	io_ckpt_close(NULL);
}

/* Sets of parts that publish must refuse; afterwards a good save still works. */
static void test_publish_refuses(void **state)
{
	static const float v[10] = {0};
	struct io_ckpt_slice s = {"t", IO_F32, 1, {10}, 0, 10, v};
	const char *root = *state;
	struct io_error err;
	int64_t *steps, n;
	static const struct {
		int64_t a0, a1, b0, b1;
		const char *text;
	} cover[] = {
		{0, 4, 5, 10, "elements [4, 5) are missing"},
		{1, 4, 4, 10, "elements [0, 1) are missing"},
		{0, 4, 4, 9, "elements [9, 10) are missing"},
		{0, 5, 4, 10, "elements [4, 5) are there more than once"},
		{0, 10, 0, 10, "elements [0, 10) are there more than once"},
		{0, 10, 3, 4, "there more than once"},
		{0, 0, 0, 0, "elements [0, 10) are missing"},
	};

	for (size_t i = 0; i < sizeof(cover) / sizeof(cover[0]); i++) {
		ok(io_ckpt_begin(root, 1, "t", 0, &err));
		s.begin = cover[i].a0, s.end = cover[i].a1;
		ok(io_ckpt_write_part(root, 1, "t", 0, &s, 1, &err));
		s.begin = cover[i].b0, s.end = cover[i].b1;
		ok(io_ckpt_write_part(root, 1, "t", 1, &s, 1, &err));
		refused(io_ckpt_publish(root, 1, "t", 2, "{}", &err), cover[i].text);
		io_ckpt_discard(root, 1, "t");
	}
	ok(io_ckpt_begin(root, 1, "t", 0, &err));
	s.begin = 0, s.end = 5;
	ok(io_ckpt_write_part(root, 1, "t", 0, &s, 1, &err));
	s.begin = 5, s.end = 10, s.dtype = IO_I32;
	ok(io_ckpt_write_part(root, 1, "t", 1, &s, 1, &err));
	refused(io_ckpt_publish(root, 1, "t", 2, "{}", &err), "different element types");
	s.dtype = IO_F32;
	ok(io_ckpt_write_part(root, 1, "t", 1, &s, 1, &err)); /* the same part again replaces it */
	refused(io_ckpt_publish(root, 1, "t", 3, "{}", &err), "part-00002.json: is missing");
	assert_int_equal(truncate(in(root, "step-00000001.tmp-t/part-00001.safetensors"), 100), 0);
	refused(io_ckpt_publish(root, 1, "t", 2, "{}", &err), "bytes");
	assert_int_equal(unlink(in(root, "step-00000001.tmp-t/part-00001.safetensors")), 0);
	refused(io_ckpt_publish(root, 1, "t", 2, "{}", &err), "part-00001.safetensors: cannot open");
	/* one part's record under another's name */
	assert_int_equal(rename(in(root, "step-00000001.tmp-t/part-00000.json"),
				in(root, "step-00000001.tmp-t/part-00001.json")),
			 0);
	refused(io_ckpt_publish(root, 1, "t", 1, "{}", &err), "is missing");
	put_file(in(root, "step-00000001.tmp-t/part-00000.json"), "{}", 2);
	refused(io_ckpt_publish(root, 1, "t", 1, "{}", &err), "truncated");
	ok(io_ckpt_list(root, &steps, &n, &err));
	assert_int_equal(n, 0);
	free(steps);
	ok(fix_save(root, 1, 2, 3, &err)); /* begin sweeps the failed one */
	ok(fix_check(root, 1, 3, 3, &err));
	assert_int_equal(access(in(root, "step-00000001.tmp-t"), F_OK), -1);
}

static void test_replace(void **state)
{
	struct io_error err;
	struct stat st;
	int64_t *steps, n;

	ok(fix_save(*state, 3, 4, 1, &err));
	ok(fix_save(*state, 3, 2, 2, &err)); /* a complete one, fewer parts */
	ok(fix_check(*state, 3, 3, 1, &err));
	assert_int_equal(access(in(*state, "step-00000003/part-00002.safetensors"), F_OK), -1);
	/* something that is no checkpoint has the name: kept, set aside */
	ok(io_mkdirs(in(*state, "step-00000004"), &err));
	put_file(in(*state, "step-00000004/precious"), "x", 1);
	put_file(in(*state, "step-00000005"), "x", 1);
	ok(fix_save(*state, 4, 1, 2, &err));
	ok(fix_save(*state, 5, 1, 2, &err));
	ok(fix_check(*state, 4, 1, 1, &err));
	ok(fix_check(*state, 5, 1, 1, &err));
	assert_int_equal(stat(in(*state, "step-00000004.bad-1/precious"), &st), 0);
	assert_int_equal(stat(in(*state, "step-00000005.bad-1"), &st), 0);
	ok(io_ckpt_list(*state, &steps, &n, &err));
	assert_int_equal(n, 3);
	free(steps);
}

static void test_list_and_sweep(void **state)
{
	/* names that are not the store's, or not complete */
	const char *others[] = {"step-7",
				"step-0000007",
				"step-000000007",
				"step-00000007x",
				"step-00000007.tmp",
				"step-00000007.tmp-A",
				"xstep-00000007",
				"step-00000007.tmp-a.b",
				"step-00000007.trash-short",
				"step--0000007",
				"step-00000007.old-x",
				"step-99999999999999999999",
				"step-00000007.bad-1"};
	const char *ours[] = {"step-00000007.tmp-zz", "step-00000009.trash-abcdefghij01",
			      "step-00000001.old-abcdefghij01"};
	struct io_error err;
	int64_t *steps, n;
	struct stat st;
	size_t i;

	ok(fix_save(*state, 1, 1, 1, &err));
	for (i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		ok(io_mkdirs(in(*state, others[i]), &err));
		put_file(in(in(*state, others[i]), "manifest.json"), "{}", 2);
	}
	for (i = 0; i < 3; i++) {
		ok(io_mkdirs(in(in(*state, ours[i]), "sub"), &err));
		put_file(in(in(*state, ours[i]), "manifest.json"), "{}", 2);
	}
	ok(io_mkdirs(in(*state, "step-00000002"), &err)); /* incomplete */
	put_file(in(*state, "step-00000008.tmp-file"), "x", 1);
	assert_int_equal(symlink(in(*state, "step-00000002"), in(*state, "step-00000008.tmp-link")), 0);
	ok(io_ckpt_list(*state, &steps, &n, &err));
	assert_int_equal(n, 1);
	assert_int_equal(steps[0], 1);
	free(steps);
	ok(io_ckpt_begin(*state, 10, "x", 0, &err));
	for (i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		assert_int_equal(stat(in(in(*state, others[i]), "manifest.json"), &st), 0);
	for (i = 0; i < 3; i++)
		assert_int_equal(lstat(in(*state, ours[i]), &st), -1);
	assert_int_equal(lstat(in(*state, "step-00000002"), &st), 0);
	assert_int_equal(lstat(in(*state, "step-00000008.tmp-file"), &st), 0);
	assert_int_equal(lstat(in(*state, "step-00000008.tmp-link"), &st), 0);
	ok(fix_check(*state, 1, 1, 1, &err));
}

/* A crash between the two renames on a file system without exchange: the stand-in counts, and is put back. */
static void test_stand_in(void **state)
{
	struct io_error err;
	int64_t *steps, n;

	ok(fix_save(*state, 1, 2, 1, &err));
	assert_int_equal(rename(in(*state, "step-00000001"), in(*state, "step-00000001.old-abcdefghij01")), 0);
	ok(io_ckpt_list(*state, &steps, &n, &err));
	assert_int_equal(n, 1);
	assert_int_equal(steps[0], 1);
	free(steps);
	ok(fix_check(*state, 1, 1, 1, &err));
	ok(io_ckpt_begin(*state, 2, "x", 0, &err));
	assert_int_equal(access(in(*state, "step-00000001/manifest.json"), F_OK), 0);
	ok(fix_check(*state, 1, 1, 1, &err));
}

static void check_steps(const char *root, const int64_t *want, int64_t count)
{
	struct io_error err;
	int64_t *steps, n;

	ok(io_ckpt_list(root, &steps, &n, &err));
	assert_int_equal(n, count);
	assert_memory_equal(steps, want, (size_t)n * sizeof(*steps));
	free(steps);
}

static void test_retain(void **state)
{
	struct io_error err;

	for (int i = 1; i <= 7; i++)
		ok(fix_save(*state, 10 * i, 1, 1, &err));
	put_file(in(*state, "notes.txt"), "x", 1);
	ok(io_ckpt_retain(*state, 3, 20, &err));
	check_steps(*state, (int64_t[]){70, 60, 50, 40, 20}, 5);
	ok(io_ckpt_retain(*state, 10, 0, &err));
	ok(io_ckpt_retain(*state, 1, 0, &err));
	check_steps(*state, (int64_t[]){70}, 1);
	ok(fix_check(*state, 70, 1, 1, &err));
	assert_int_equal(access(in(*state, "notes.txt"), F_OK), 0);
	ok(io_ckpt_retain(in(*state, "none"), 1, 0, &err));
	/* a checkpoint moved elsewhere and linked is not ours to delete */
	ok(fix_save(in(*state, "far"), 5, 1, 1, &err));
	assert_int_equal(symlink(in(*state, "far/step-00000005"), in(*state, "step-00000005")), 0);
	ok(fix_check(*state, 5, 1, 1, &err));
	ok(io_ckpt_retain(*state, 1, 0, &err));
	ok(fix_check(*state, 5, 1, 1, &err));
}

static void test_quarantine(void **state)
{
	struct io_error err;
	struct stat st;

	for (int i = 1; i <= 3; i++) {
		ok(fix_save(*state, 9, 1, 1, &err));
		ok(fix_save(*state, 8, 1, 1, &err));
		ok(io_ckpt_quarantine(*state, 9, &err));
		check_steps(*state, (int64_t[]){8}, 1);
	}
	assert_int_equal(stat(in(*state, "step-00000009.bad-1/manifest.json"), &st), 0);
	assert_int_equal(stat(in(*state, "step-00000009.bad-3/manifest.json"), &st), 0);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, tmp_setup, tmp_teardown)
	const struct CMUnitTest tests[] = {
		T(test_round_trip), T(test_threads),	     T(test_same_bytes), T(test_parts_are_safetensors),
		T(test_arguments),  T(test_publish_refuses), T(test_replace),	 T(test_list_and_sweep),
		T(test_stand_in),   T(test_retain),	     T(test_quarantine),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
