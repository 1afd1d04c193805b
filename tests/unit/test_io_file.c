/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/io_test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>

static void test_hash_text(void **state)
{
	/* the published value of XXH3-128 of no bytes: 99aa06d3014798d86001c324468d497f */
	struct io_hash128 h = io_hash_mem("", 0), back;
	char hex[33], bad[33];

	(void)state;
	io_hash_hex(h, hex);
	assert_string_equal(hex, "99aa06d3014798d86001c324468d497f");
	assert_int_equal(io_hash_parse(hex, &back), 0);
	assert_true(back.hi == h.hi && back.lo == h.lo);
	for (int i = 0; i < 32; i++) {
		const char *wrong = "gG /:`A";

		for (; *wrong; wrong++) {
			memcpy(bad, hex, 33);
			bad[i] = *wrong;
			assert_int_equal(io_hash_parse(bad, &back), -1);
		}
		memcpy(bad, hex, 33);
		bad[i] = '\0';
		assert_int_equal(io_hash_parse(bad, &back), -1);
	}
	assert_int_equal(io_hash_parse("99aa06d3014798d86001c324468d497f0", &back), -1);
}

static void test_hash_range(void **state)
{
	size_t n = (9u << 20) + 17; /* more than two blocks */
	char *data = malloc(n);
	uint64_t seed = 1;
	struct io_error err;
	struct io_hash128 a, b;
	int fd;

	for (size_t i = 0; i < n; i++)
		data[i] = (char)next_random(&seed);
	put_file(in(*state, "f"), data, n);
	fd = open(in(*state, "f"), O_RDONLY);
	const int64_t range[][2] = {{0, (int64_t)n}, {5, 4 << 20}, {1, (int64_t)n - 1}, {(int64_t)n, 0}, {7, 1}};
	for (size_t i = 0; i < 5; i++) {
		ok(io_hash_range(fd, "f", range[i][0], range[i][1], &a, &err));
		b = io_hash_mem(data + range[i][0], (size_t)range[i][1]);
		assert_true(a.hi == b.hi && a.lo == b.lo);
	}
	refused(io_hash_range(fd, "f", 0, (int64_t)n + 1, &a, &err), "truncated");
	refused(io_hash_range(fd, "f", -1, 1, &a, &err), "not a range");
	refused(io_hash_range(fd, "f", INT64_MAX, 2, &a, &err), "not a range");
	close(fd);
	free(data);
}

static void test_read_file(void **state)
{
	struct io_error err;
	char *data;
	size_t len;

	put_file(in(*state, "f"), "hello", 5);
	ok(io_read_file(in(*state, "f"), 5, &data, &len, &err));
	assert_int_equal(len, 5);
	assert_string_equal(data, "hello");
	free(data);
	put_file(in(*state, "empty"), "", 0);
	ok(io_read_file(in(*state, "empty"), 0, &data, &len, &err));
	assert_string_equal(data, "");
	free(data);
	refused(io_read_file(in(*state, "f"), 4, &data, &len, &err), "at most 4");
	refused(io_read_file(in(*state, "none"), 4, &data, &len, &err), "No such file");
	assert_int_equal(err.code, ENOENT);
	refused(io_read_file(*state, 4, &data, &len, &err), "not a regular file");
	/* a FIFO must not hang */
	assert_int_equal(mkfifo(in(*state, "fifo"), 0600), 0);
	refused(io_read_file(in(*state, "fifo"), 4, &data, &len, &err), "not a regular file");
	assert_int_equal(symlink(in(*state, "f"), in(*state, "link")), 0);
	ok(io_read_file(in(*state, "link"), 5, &data, &len, &err));
	free(data);
}

static int entries(const char *dir)
{
	char cmd[4200];
	FILE *p;
	int n = -1;

	snprintf(cmd, sizeof(cmd), "ls -A '%s' | wc -l", dir);
	p = popen(cmd, "r");
	assert_non_null(p);
	assert_int_equal(fscanf(p, "%d", &n), 1);
	pclose(p);
	return n;
}

static void test_write_file(void **state)
{
	struct io_error err;
	struct rlimit old, small;
	char *data;
	size_t n;

	ok(io_write_file(in(*state, "f"), "one", 3, &err));
	ok(io_write_file(in(*state, "f"), "two!", 4, &err));
	data = get_file(in(*state, "f"), &n);
	assert_string_equal(data, "two!");
	free(data);
	assert_int_equal(entries(*state), 1);
	refused(io_write_file(in(*state, "no/f"), "x", 1, &err), "no/f.tmp-");
	/* a write that fails leaves the old contents and no temporary file: EFBIG stands for a full disk here */
	char *big = calloc(1, 1 << 16);
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
	small = old;
	small.rlim_cur = 4096;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	int rc = io_write_file(in(*state, "f"), big, 1 << 16, &err);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
	assert_int_equal(rc, -1);
	assert_int_equal(err.code, EFBIG);
	assert_non_null(strstr(err.text, "writing"));
	free(big);
	data = get_file(in(*state, "f"), &n);
	assert_string_equal(data, "two!");
	free(data);
	assert_int_equal(entries(*state), 1);
	/* the target is a folder: refused by rename */
	ok(io_mkdirs(in(*state, "d/e"), &err));
	refused(io_write_file(in(*state, "d"), "x", 1, &err), "rename");
	assert_int_equal(entries(*state), 2);
}

static void test_positions(void **state)
{
	struct io_error err;
	char c = 'x';
	int fd = open(in(*state, "sparse"), O_RDWR | O_CREAT, 0600);
	int64_t far = (INT64_C(5) << 30) + 3; /* beyond 2^32 */

	ok(io_pwrite_full(fd, "sparse", &c, 1, far, &err));
	c = 0;
	ok(io_pread_full(fd, "sparse", &c, 1, far, &err));
	assert_int_equal(c, 'x');
	refused(io_pread_full(fd, "sparse", &c, 1, far + 1, &err), "truncated");
	refused(io_pread_full(fd, "sparse", &c, 1, -1, &err), "not a file position");
	refused(io_pread_full(fd, "sparse", &c, 2, INT64_MAX - 1, &err), "not a file position");
	refused(io_pwrite_full(fd, "sparse", &c, 1, -1, &err), "not a file position");
	close(fd);
	fd = open(in(*state, "sparse"), O_RDONLY);
	refused(io_pwrite_full(fd, "sparse", &c, 1, 0, &err), "writing 1 bytes at offset 0");
	close(fd);
}

static void test_folders(void **state)
{
	struct io_error err;
	struct stat st;
	char outside[4096];

	ok(io_mkdirs(in(*state, "a//b/c/"), &err));
	ok(io_mkdirs(in(*state, "a/b/c"), &err));
	put_file(in(*state, "file"), "x", 1);
	refused(io_mkdirs(in(*state, "file/x"), &err), "cannot make the folder");
	refused(io_mkdirs(in(*state, "file"), &err), "cannot make the folder");
	refused(io_mkdirs("", &err), "empty name");
	/* links are removed, never followed */
	snprintf(outside, sizeof(outside), "%s", in(*state, "outside"));
	ok(io_mkdirs(outside, &err));
	put_file(in(outside, "keep"), "x", 1);
	assert_int_equal(symlink(outside, in(*state, "a/b/link")), 0);
	put_file(in(*state, "a/b/c/f"), "x", 1);
	ok(io_remove_tree(in(*state, "a"), &err));
	assert_int_equal(lstat(in(*state, "a"), &st), -1);
	assert_int_equal(lstat(in(outside, "keep"), &st), 0);
	assert_int_equal(symlink(outside, in(*state, "top")), 0);
	refused(io_remove_tree(in(*state, "top"), &err), "cannot open the folder");
	assert_int_equal(lstat(in(outside, "keep"), &st), 0);
	refused(io_remove_tree(in(*state, "none"), &err), "No such file");
	assert_int_equal(err.code, ENOENT);
	/* far deeper than any store: refused, not a stack overflow */
	char deep[2048];
	int k = snprintf(deep, sizeof(deep), "%s/deep", (char *)*state);
	for (int i = 0; i < 100; i++)
		k += snprintf(deep + k, sizeof(deep) - (size_t)k, "/d");
	ok(io_mkdirs(deep, &err));
	refused(io_remove_tree(in(*state, "deep"), &err), "nested deeper");
	deep[strlen(*state) + 5 + 2 * 50] = '\0';
	ok(io_remove_tree(deep, &err));
	ok(io_fsync_dir(*state, &err));
	refused(io_fsync_dir(in(*state, "none"), &err), "sync");
	assert_true(io_free_bytes(*state) > 0);
	assert_true(io_free_bytes(in(*state, "none")) == -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hash_text),
		cmocka_unit_test_setup_teardown(test_hash_range, tmp_setup, tmp_teardown),
		cmocka_unit_test_setup_teardown(test_read_file, tmp_setup, tmp_teardown),
		cmocka_unit_test_setup_teardown(test_write_file, tmp_setup, tmp_teardown),
		cmocka_unit_test_setup_teardown(test_positions, tmp_setup, tmp_teardown),
		cmocka_unit_test_setup_teardown(test_folders, tmp_setup, tmp_teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
