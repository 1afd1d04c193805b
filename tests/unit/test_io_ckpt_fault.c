/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults at every system call of a save. The definitions below take the place of the C library's inside this
 * program; a child saves with one of them armed, the parent looks at what is left. Whatever happened, the store
 * holds what was there before or the whole new checkpoint, and saving again works.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define FIX_ROWS 29 /* small: there are thousands of saves */
#include "tests/unit/ckpt_fixture.h"

enum fault { NONE, KILL, TORN, FAIL, FAIL_FROM, SHORT };

struct event {
	const char *op;
	char a[512], b[512];
};

/* of this process; the parent leaves it alone */
static struct {
	enum fault fault;
	int code;	 /* errno given by FAIL and FAIL_FROM */
	int at, seen;	 /* the fault strikes at call `at`, counting from 1 */
	int no_exchange; /* like NFS: two names cannot be exchanged */
	struct event *log;
	int nlog;
} hook;

static void fd_path(int fd, char *out)
{
	char link[64];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, out, 511);
	out[n > 0 ? n : 0] = '\0';
}

static void note(const char *op, const char *a, int fd, const char *b)
{
	struct event *e;

	if (!hook.log || hook.nlog == 1000)
		return;
	e = &hook.log[hook.nlog++];
	e->op = op;
	if (a)
		snprintf(e->a, sizeof(e->a), "%s", a);
	else
		fd_path(fd, e->a);
	snprintf(e->b, sizeof(e->b), "%s", b ? b : "");
}

/* 1: the call must fail with errno set; 2: a write must do half of its work */
static int strike(int is_write, int grows)
{
	hook.seen++;
	if (hook.fault == NONE || hook.seen < hook.at || (hook.seen > hook.at && hook.fault != FAIL_FROM))
		return 0;
	switch (hook.fault) {
	case KILL:
		_exit(77);
	case TORN:
		if (is_write)
			return 2;
		_exit(77);
	case SHORT:
		return is_write ? 2 : 0;
	case FAIL:
		errno = hook.code;
		return 1;
	case FAIL_FROM: /* a full disk refuses what grows, everything else goes on working */
		errno = hook.code;
		return grows;
	default:
		return 0;
	}
}

int open(const char *path, int flags, ...)
{
	va_list ap;
	mode_t mode;

	va_start(ap, flags);
	mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
	va_end(ap);
	if (strike(0, flags & O_CREAT) != 0)
		return -1;
	if (flags & O_CREAT)
		note("create", path, -1, NULL);
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t off)
{
	int s = strike(1, 1);
	ssize_t k;

	if (s == 1)
		return -1;
	note("write", NULL, fd, NULL);
	k = syscall(SYS_pwrite64, fd, p, s == 2 ? (n + 1) / 2 : n, off);
	if (s == 2 && hook.fault == TORN)
		_exit(77);
	return k;
}

ssize_t pread(int fd, void *p, size_t n, off_t off)
{
	int s = strike(1, 0);

	if (s == 1)
		return -1;
	return syscall(SYS_pread64, fd, p, s == 2 ? (n + 1) / 2 : n, off);
}

int fsync(int fd)
{
	if (strike(0, 1))
		return -1;
	note("fsync", NULL, fd, NULL);
	return (int)syscall(SYS_fsync, fd);
}

int close(int fd)
{
	int s = strike(0, 0);

	syscall(SYS_close, fd); /* closed in any case, as Linux does */
	return s ? -1 : 0;
}

int rename(const char *from, const char *to)
{
	if (strike(0, 1))
		return -1;
	note("rename", from, -1, to);
	return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat2(int d1, const char *from, int d2, const char *to, unsigned flags)
{
	if (strike(0, 1))
		return -1;
	if (hook.no_exchange) {
		errno = EINVAL;
		return -1;
	}
	note("exchange", from, -1, to);
	return (int)syscall(SYS_renameat2, d1, from, d2, to, flags);
}

int mkdir(const char *path, mode_t mode)
{
	if (strike(0, 1))
		return -1;
	return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int unlink(const char *path)
{
	if (strike(0, 0))
		return -1;
	return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int unlinkat(int dir, const char *path, int flags)
{
	if (strike(0, 0))
		return -1;
	return (int)syscall(SYS_unlinkat, dir, path, flags);
}

int rmdir(const char *path)
{
	if (strike(0, 0))
		return -1;
	return (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}

/* ---- the scenarios ---- */

struct scenario {
	const char *name;
	int64_t step; /* saved while step 1 is there; 1 replaces it */
	int no_exchange, retain;
};

struct outcome {
	int calls, rc, code;
	char text[508];
};

/* Runs the save in a child with the fault armed. Exit codes: 0 reported through the file, 77 killed. */
static int run_child(const char *root, const struct scenario *s, enum fault fault, int code, int at,
		     struct outcome *o)
{
	const char *report = in(root, "../report");
	struct io_error err = {0};
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (pid == 0) {
		FILE *f;

		fix_salt = 5;
		hook.fault = fault;
		hook.code = code;
		hook.at = at;
		hook.seen = 0;
		hook.no_exchange = s->no_exchange;
		memset(o, 0, sizeof(*o));
		o->rc = fix_save(root, s->step, 2, 8, &err);
		if (o->rc == 0 && s->retain)
			io_ckpt_retain(root, 1, 0, NULL); /* may fail; must not harm */
		else if (o->rc != 0 && at % 2)
			io_ckpt_discard(root, s->step, "abc0"); /* what a trainer does; the other half leaves it */
		o->calls = hook.seen;
		hook.fault = NONE;
		o->code = err.code;
		memcpy(o->text, err.text, sizeof(o->text));
		f = fopen(report, "wb");
		_exit(f && fwrite(o, sizeof(*o), 1, f) == 1 && fclose(f) == 0 ? 0 : 99);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == 0) {
		size_t n;
		char *data = get_file(report, &n);

		assert_int_equal(n, sizeof(*o));
		memcpy(o, data, n);
		free(data);
	}
	return WEXITSTATUS(status);
}

static int has_step(const int64_t *steps, int64_t n, int64_t step)
{
	for (int64_t i = 0; i < n; i++) {
		if (steps[i] == step)
			return 1;
	}
	return 0;
}

static int check_salted(const char *root, int64_t step, int64_t salt, struct io_error *err)
{
	int rc;

	fix_salt = salt;
	rc = fix_check(root, step, 3, 4, err);
	fix_salt = 0;
	return rc;
}

/* What must hold after any end of the child. saved: the child said that it had saved. */
static void judge(const char *root, const struct scenario *s, int saved, const char *what)
{
	int64_t *steps, n;
	struct io_error err, err2;

	ok(io_ckpt_list(root, &steps, &n, &err));
	for (int64_t i = 0; i < n; i++) {
		if (steps[i] != 1 && steps[i] != s->step)
			fail_msg("%s: lists step %" PRId64, what, steps[i]);
	}
	if (s->step == 1) {
		if (!has_step(steps, n, 1))
			fail_msg("%s: step 1 is gone", what);
		if (check_salted(root, 1, 5, &err) != 0 && (saved || check_salted(root, 1, 0, &err2) != 0))
			fail_msg("%s: step 1 is neither the old one nor the new: %s", what, err.text);
	} else {
		int have = has_step(steps, n, s->step);

		if (saved && !have)
			fail_msg("%s: the save reported success, its step is not there", what);
		if (have && check_salted(root, s->step, 5, &err) != 0)
			fail_msg("%s: the new step is listed but broken: %s", what, err.text);
		if (has_step(steps, n, 1) ? check_salted(root, 1, 0, &err) != 0 : !(have && s->retain))
			fail_msg("%s: the old step is gone or broken", what);
	}
	free(steps);
}

static void reset(const char *root)
{
	struct io_error err;

	if (access(root, F_OK) == 0)
		ok(io_remove_tree(root, &err));
	ok(fix_save(root, 1, 2, 1, &err));
}

static void save_again(const char *root, const struct scenario *s, const char *what)
{
	struct io_error err;
	struct dirent *e;
	DIR *d;

	fix_salt = 5;
	if (fix_save(root, s->step, 3, 2, &err) != 0)
		fail_msg("%s: saving again: %s", what, err.text);
	fix_salt = 0;
	if (check_salted(root, s->step, 5, &err) != 0)
		fail_msg("%s: the second save: %s", what, err.text);
	d = opendir(root);
	assert_non_null(d);
	while ((e = readdir(d))) {
		if (e->d_name[0] != '.' && strcmp(e->d_name, "step-00000001") != 0 &&
		    strcmp(e->d_name, "step-00000002") != 0)
			fail_msg("%s: %s stays", what, e->d_name);
	}
	closedir(d);
}

static void one(const char *root, const struct scenario *s, enum fault fault, int code, int at)
{
	char what[200];
	struct outcome o;
	int status;

	snprintf(what, sizeof(what), "%s, fault %d, code %d, call %d", s->name, fault, code, at);
	reset(root);
	status = run_child(root, s, fault, code, at, &o);
	if (status != 0 && status != 77)
		fail_msg("%s: the child failed", what);
	if (status == 77)
		assert_true(fault == KILL || fault == TORN);
	if (status == 0 && o.rc != 0) {
		/* an error that names a file and the cause; the code is what the system gave */
		if (fault == SHORT || !strstr(o.text, root) || !strstr(o.text, strerror(code)) || o.code != code)
			fail_msg("%s: text \"%s\", code %d", what, o.text, o.code);
	}
	judge(root, s, status == 0 && o.rc == 0, what);
	save_again(root, s, what);
}

static void run_scenario(const char *dir, const struct scenario *s)
{
	static const struct {
		enum fault fault;
		int code;
	} faults[] = {{KILL, 0},	   {TORN, 0},		{FAIL, EIO}, {FAIL, ENOSPC},
		      {FAIL_FROM, ENOSPC}, {FAIL_FROM, EDQUOT}, {SHORT, 0}};
	char root[4096];
	struct outcome o;

	snprintf(root, sizeof(root), "%s/root", dir);
	reset(root);
	assert_int_equal(run_child(root, s, NONE, 0, 0, &o), 0);
	assert_int_equal(o.rc, 0);
	assert_true(o.calls > 40); /* the hooks do see the save */
	judge(root, s, 1, s->name);
	for (size_t f = 0; f < sizeof(faults) / sizeof(faults[0]); f++) {
		for (int at = 1; at <= o.calls; at++)
			one(root, s, faults[f].fault, faults[f].code, at);
	}
}

static void test_new_step(void **state)
{
	run_scenario(*state, &(struct scenario){"new step", 2, 0, 0});
}

static void test_new_step_and_retain(void **state)
{
	run_scenario(*state, &(struct scenario){"new step, retain", 2, 0, 1});
}

static void test_replace(void **state)
{
	run_scenario(*state, &(struct scenario){"replace", 1, 0, 0});
}

static void test_replace_without_exchange(void **state)
{
	run_scenario(*state, &(struct scenario){"replace without exchange", 1, 1, 0});
}

/* ---- power loss: what is renamed into place was synced before ---- */

static int find(const struct event *log, int from, int to, const char *op, const char *a)
{
	for (int i = to - 1; i >= from; i--) {
		if (strcmp(log[i].op, op) == 0 && strcmp(log[i].a, a) == 0)
			return i;
	}
	return -1;
}

static void test_order_of_syncs(void **state)
{
	static struct event log[1000];
	char root[4096], tmp[4200], final[4200];
	struct io_error err;
	int publish = -1, files = 0, i;

	snprintf(root, sizeof(root), "%s/root", (char *)*state);
	snprintf(tmp, sizeof(tmp), "%s/step-00000002.tmp-abc0", root);
	snprintf(final, sizeof(final), "%s/step-00000002", root);
	reset(root);
	hook.log = log;
	i = fix_save(root, 2, 3, 1, &err);
	hook.log = NULL;
	assert_int_equal(i, 0);
	publish = find(log, 0, hook.nlog, "rename", tmp);
	assert_true(publish > 0);
	assert_string_equal(log[publish].b, final);
	/* nothing is written after; the root is synced after */
	for (i = publish; i < hook.nlog; i++)
		assert_string_not_equal(log[i].op, "write");
	assert_true(find(log, publish, hook.nlog, "fsync", root) > publish);
	for (i = 0; i < publish; i++) {
		int last_write, sync, dir_sync;

		if (strcmp(log[i].op, "create") != 0)
			continue;
		files++;
		last_write = find(log, i, publish, "write", log[i].a);
		sync = find(log, i, publish, "fsync", log[i].a);
		assert_true(last_write > i && sync > last_write);
		/* the name is durable too: the folder is synced after the last change of names */
		dir_sync = find(log, i, publish, "fsync", tmp);
		assert_true(dir_sync > sync);
		for (int k = i; k < publish; k++) {
			if (strcmp(log[k].op, "rename") == 0 && strcmp(log[k].a, log[i].a) == 0)
				assert_true(k > sync && dir_sync > k);
		}
	}
	assert_int_equal(files, 3 + 3 + 2); /* parts, their records, manifest, state */
}

/* Thousands of saves: in memory, where fsync costs nothing. */
static int shm_setup(void **state)
{
	if (!getenv("TMPDIR") && access("/dev/shm", W_OK) == 0)
		setenv("TMPDIR", "/dev/shm", 1);
	return tmp_setup(state);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, shm_setup, tmp_teardown)
	const struct CMUnitTest tests[] = {
		T(test_new_step),	T(test_new_step_and_retain),
		T(test_replace),	T(test_replace_without_exchange),
		T(test_order_of_syncs),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
