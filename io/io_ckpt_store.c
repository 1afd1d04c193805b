/* SPDX-License-Identifier: Apache-2.0 */
/* Folders of the checkpoint store: names, list, leftovers, retention, quarantine. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/io_ckpt_priv.h"
#include "io/io_file_priv.h"

#define RANDOM_LEN 12
#define MAX_BAD	   10000

enum folder { PUBLISHED, TMP, OLD, TRASH, FOREIGN };

int io__ckpt_check_step(const char *root, int64_t step, struct io_error *err)
{
	if (step >= 0 && step <= IO__CKPT_MAX_STEP)
		return 0;
	return io_errorf(err, EINVAL, "%s: %" PRId64 " is not a checkpoint step; 0 to %" PRId64 " are", root, step,
			 IO__CKPT_MAX_STEP);
}

/* n characters of [0-9a-z], then the end; n 0: any number from 1 to 32 */
static int is_token(const char *s, size_t n)
{
	size_t len = strspn(s, "0123456789abcdefghijklmnopqrstuvwxyz");

	return s[len] == '\0' && (n ? len == n : len >= 1 && len <= 32);
}

int io__ckpt_check_token(const char *token, struct io_error *err)
{
	if (token && is_token(token, 0))
		return 0;
	return io_errorf(err, EINVAL,
			 "\"%.40s\" is not a name for a save in progress: 1 to 32 characters of [0-9a-z]",
			 token ? token : "");
}

char *io__ckpt_dir(const char *root, int64_t step, struct io_error *err)
{
	return io__strf(err, "%s/step-%08" PRId64, root, step);
}

char *io__ckpt_tmp(const char *root, int64_t step, const char *token, struct io_error *err)
{
	return io__strf(err, "%s/step-%08" PRId64 ".tmp-%s", root, step, token);
}

/* What a name in root is, and its step. */
static enum folder classify(const char *name, int64_t *step)
{
	char canon[32];
	int64_t v = 0;
	size_t n;

	if (strncmp(name, "step-", 5) != 0)
		return FOREIGN;
	for (n = 5; name[n] >= '0' && name[n] <= '9'; n++) {
		v = v * 10 + (name[n] - '0');
		if (v > IO__CKPT_MAX_STEP)
			return FOREIGN;
	}
	snprintf(canon, sizeof(canon), "step-%08" PRId64, v);
	if (strlen(canon) != n || strncmp(canon, name, n) != 0)
		return FOREIGN;
	*step = v;
	name += n;
	if (*name == '\0')
		return PUBLISHED;
	if (strncmp(name, ".tmp-", 5) == 0 && is_token(name + 5, 0))
		return TMP;
	if (strncmp(name, ".old-", 5) == 0 && is_token(name + 5, RANDOM_LEN))
		return OLD;
	if (strncmp(name, ".trash-", 7) == 0 && is_token(name + 7, RANDOM_LEN))
		return TRASH;
	return FOREIGN;
}

int io__ckpt_kind(const char *dir)
{
	char *manifest;
	struct stat st;
	int kind;

	if (lstat(dir, &st) != 0)
		return errno == ENOENT ? -1 : 0;
	if (!S_ISDIR(st.st_mode))
		return 0;
	manifest = io__strf(NULL, "%s/manifest.json", dir);
	kind = manifest && stat(manifest, &st) == 0 && S_ISREG(st.st_mode);
	free(manifest);
	return kind;
}

static DIR *open_root(const char *root, struct io_error *err)
{
	int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d;

	if (fd < 0) {
		io_errorf(err, errno, "%s: cannot open the checkpoint folder: %s", root, strerror(errno));
		return NULL;
	}
	d = fdopendir(fd);
	if (!d) {
		io_errorf(err, errno, "%s: cannot list the checkpoint folder: %s", root, strerror(errno));
		close(fd);
	}
	return d;
}

/* Entries of root as strings; links and everything that is not a folder are left out unless it is a published
 * name. */
static int read_root(const char *root, char ***names, int64_t *n, struct io_error *err)
{
	DIR *d = open_root(root, err);
	struct dirent *e;
	int64_t cap = 0, step;
	int rc = 0;

	*names = NULL;
	*n = 0;
	if (!d)
		return -1;
	for (;;) {
		errno = 0;
		e = readdir(d);
		if (!e) {
			if (errno != 0)
				rc = io_errorf(err, errno, "%s: cannot list the checkpoint folder: %s", root,
					       strerror(errno));
			break;
		}
		if (classify(e->d_name, &step) == FOREIGN)
			continue;
		if (*n == cap) {
			char **p = reallocarray(*names, (size_t)(cap = cap ? 2 * cap : 16), sizeof(*p));

			if (!p) {
				rc = io_errorf(err, ENOMEM, "%s: no memory to list the checkpoint folder", root);
				break;
			}
			*names = p;
		}
		(*names)[*n] = strdup(e->d_name);
		if (!(*names)[*n]) {
			rc = io_errorf(err, ENOMEM, "%s: no memory to list the checkpoint folder", root);
			break;
		}
		(*n)++;
	}
	closedir(d);
	return rc;
}

static void free_names(char **names, int64_t n)
{
	while (n > 0)
		free(names[--n]);
	free(names);
}

static int newest_first(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x < y) - (x > y);
}

int io_ckpt_list(const char *root, int64_t **steps, int64_t *n, struct io_error *err)
{
	struct io_error own;
	int64_t i, count = 0, k, step = 0, *list = NULL;
	char **names;

	*steps = NULL;
	*n = 0;
	if (read_root(root, &names, &count, &own) != 0) {
		free_names(names, count);
		return own.code == ENOENT ? 0 : io_errorf(err, own.code, "%s", own.text);
	}
	list = calloc((size_t)count + 1, sizeof(*list));
	if (!list) {
		free_names(names, count);
		return io_errorf(err, ENOMEM, "%s: no memory to list the checkpoint folder", root);
	}
	for (i = k = 0; i < count; i++) {
		enum folder what = classify(names[i], &step);
		char *dir = what == PUBLISHED || what == OLD
				    ? io__strf(NULL, "%s/%s/manifest.json", root, names[i])
				    : NULL;
		struct stat st;

		if (dir && stat(dir, &st) == 0 && S_ISREG(st.st_mode))
			list[k++] = step;
		free(dir);
	}
	free_names(names, count);
	qsort(list, (size_t)k, sizeof(*list), newest_first);
	for (i = count = 0; i < k; i++) { /* a step and its stand-in are one */
		if (i == 0 || list[i] != list[i - 1])
			list[count++] = list[i];
	}
	*steps = list;
	*n = count;
	return 0;
}

char *io__ckpt_find(const char *root, int64_t step, struct io_error *err)
{
	char *dir = io__ckpt_dir(root, step, err), *manifest = NULL, **names = NULL;
	struct stat st;
	int64_t i, n = 0, s = 0;

	if (!dir)
		return NULL;
	manifest = io__strf(err, "%s/manifest.json", dir);
	if (!manifest || stat(manifest, &st) == 0)
		goto done;
	free(dir);
	dir = NULL;
	if (read_root(root, &names, &n, err) != 0)
		goto done;
	for (i = 0; i < n && !dir; i++) {
		if (classify(names[i], &s) != OLD || s != step)
			continue;
		dir = io__strf(err, "%s/%s", root, names[i]);
		if (dir && io__ckpt_kind(dir) != 1) {
			free(dir);
			dir = NULL;
		}
	}
	if (!dir)
		io_errorf(err, ENOENT,
			  "%s: has no checkpoint of step %" PRId64 " (step-%08" PRId64 "/manifest.json)", root,
			  step, step);
done:
	if (!manifest) {
		free(dir);
		dir = NULL;
	}
	free(manifest);
	free_names(names, n);
	return dir;
}

int io__ckpt_trash(const char *root, int64_t step, const char *dir, struct io_error *err)
{
	char rnd[RANDOM_LEN + 1], *trash;
	struct stat st;
	int rc = -1;

	if (lstat(dir, &st) != 0)
		return io_errorf(err, errno, "%s: cannot stat: %s", dir, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return 0;
	io__random_name(rnd, RANDOM_LEN);
	trash = io__strf(err, "%s/step-%08" PRId64 ".trash-%s", root, step, rnd);
	if (!trash)
		return -1;
	/* the new name must be durable before contents go, else a crash could bring back a hollow checkpoint */
	if (io__rename_sync(dir, trash, err) == 0)
		rc = io_remove_tree(trash, err);
	free(trash);
	return rc;
}

static void sweep_one(const char *root, const char *name)
{
	char *path = io__strf(NULL, "%s/%s", root, name), *final;
	int64_t step = 0;
	enum folder what = classify(name, &step);
	struct stat st;

	if (path && what != PUBLISHED && lstat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
		final = io__ckpt_dir(root, step, NULL);
		if (what == OLD && final && io__ckpt_kind(final) == -1)
			io__rename_sync(path, final, NULL);
		else if (what == OLD)
			io__ckpt_trash(root, step, path, NULL);
		else
			io_remove_tree(path, NULL);
		free(final);
	}
	free(path);
}

void io__ckpt_sweep(const char *root)
{
	char **names;
	int64_t i, n;

	if (read_root(root, &names, &n, NULL) == 0) {
		for (i = 0; i < n; i++)
			sweep_one(root, names[i]);
	}
	free_names(names, n);
}

int io_ckpt_retain(const char *root, int keep, int64_t keep_every, struct io_error *err)
{
	int64_t *steps, n, i;
	int rc = 0;

	if (keep < 1 || keep_every < 0)
		return io_errorf(err, EINVAL,
				 "%s: cannot keep %d checkpoints and each of %" PRId64
				 " steps; at least 1 and 0 are needed",
				 root, keep, keep_every);
	if (io_ckpt_list(root, &steps, &n, err) != 0)
		return -1;
	for (i = keep; i < n; i++) {
		char *dir;

		if (keep_every > 0 && steps[i] % keep_every == 0)
			continue;
		/* one that resists does not protect the others; the last failure is reported */
		dir = io__ckpt_find(root, steps[i], err);
		if (!dir || io__ckpt_trash(root, steps[i], dir, err) != 0)
			rc = -1;
		free(dir);
	}
	free(steps);
	return rc;
}

int io__ckpt_set_aside(const char *root, int64_t step, const char *dir, struct io_error *err)
{
	int k;

	for (k = 1; k <= MAX_BAD; k++) {
		char *bad = io__strf(err, "%s/step-%08" PRId64 ".bad-%d", root, step, k);
		struct stat st;
		int rc;

		if (!bad)
			return -1;
		if (lstat(bad, &st) == 0) {
			free(bad);
			continue;
		}
		rc = io__rename_sync(dir, bad, err);
		free(bad);
		return rc;
	}
	return io_errorf(err, EEXIST,
			 "%s: %d damaged checkpoints of step %" PRId64 " were set aside before; delete some", root,
			 MAX_BAD, step);
}

int io_ckpt_quarantine(const char *root, int64_t step, struct io_error *err)
{
	char *dir;
	int rc;

	if (io__ckpt_check_step(root, step, err) != 0)
		return -1;
	dir = io__ckpt_find(root, step, err);
	if (!dir)
		return -1;
	rc = io__ckpt_set_aside(root, step, dir, err);
	free(dir);
	return rc;
}
