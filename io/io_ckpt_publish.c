/* SPDX-License-Identifier: Apache-2.0 */
/* Saving, the part one rank does: collect the parts, write the manifest, give the folder its name. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "io/io_ckpt_priv.h"
#include "io/io_file_priv.h"

/* A file another node made and synced may stay invisible here until this node's name cache expires. Waits double
 * from the first, about 2.5 s in all; only a part that really is missing costs that long. */
#define FIRST_WAIT_NS 20000000L
#define WAITS	      7

static int read_part_json(const char *path, char **text, size_t *len, struct io_error *err)
{
	struct timespec ts = {.tv_nsec = FIRST_WAIT_NS};
	struct io_error own;
	int i;

	for (i = 0;; i++) {
		if (io_read_file(path, IO__CKPT_MAX_MANIFEST, text, len, &own) == 0)
			return 0;
		if (own.code != ENOENT || i == WAITS)
			break;
		nanosleep(&ts, NULL);
		ts.tv_nsec *= 2;
		if (ts.tv_nsec >= 1000000000L)
			ts = (struct timespec){.tv_sec = 1};
	}
	if (own.code == ENOENT)
		return io_errorf(err, ENOENT, "%s: is missing; that part was never completed", path);
	return io_errorf(err, own.code, "%s", own.text);
}

/* Adds part i of the save in dir to m and checks that its file is there in full. */
static int collect_part(const char *dir, int i, int64_t step, struct io__model *m, struct io_error *err)
{
	int64_t before = m->nfiles, size = 0;
	char name[64], *path, *text = NULL;
	size_t len;
	int fd, rc = -1;

	path = io__strf(err, "%s/part-%05d.json", dir, i);
	if (!path || read_part_json(path, &text, &len, err) != 0)
		goto done;
	if (io__ckpt_parse(text, len, IO__CKPT_PART_FORMAT, step, m, NULL, path, err) != 0)
		goto done;
	snprintf(name, sizeof(name), "part-%05d.safetensors", i);
	if (m->nfiles != before + 1 || strcmp(m->files[before].name, name) != 0) {
		io_errorf(err, EBADMSG, "%s: does not describe %s alone", path, name);
		goto done;
	}
	free(path);
	path = io__strf(err, "%s/%s", dir, name);
	fd = path ? io__open_regular(path, &size, err) : -1;
	if (fd < 0)
		goto done;
	close(fd);
	if (size != m->files[before].bytes)
		io_errorf(err, EBADMSG, "%s: has %" PRId64 " bytes, %" PRId64 " were written", path, size,
			  m->files[before].bytes);
	else
		rc = 0;
done:
	free(text);
	free(path);
	return rc;
}

static int write_documents(const char *dir, const struct io__model *m, const char *state, struct io_error *err)
{
	struct io_hash128 h = io_hash_mem(state, strlen(state));
	struct io__text text = {0};
	char *path = io__strf(err, "%s/trainer_state.json", dir);
	int rc = path ? io_write_file(path, state, strlen(state), err) : -1;

	free(path);
	path = NULL;
	if (rc == 0)
		rc = io__ckpt_dump(m, IO__CKPT_FORMAT, &h, &text, err);
	if (rc == 0) {
		path = io__strf(err, "%s/manifest.json", dir);
		rc = path ? io_write_file(path, text.p, text.n, err) : -1;
	}
	io__text_free(&text);
	free(path);
	return rc;
}

static void drop_part_records(const char *dir, int nparts)
{
	for (int i = 0; i < nparts; i++) {
		char *path = io__strf(NULL, "%s/part-%05d.json", dir, i);

		if (path)
			unlink(path); /* harmless when one stays: the manifest says all */
		free(path);
	}
}

/* Where two names cannot be exchanged: the old checkpoint steps aside as .old-, which counts as it until the new
 * one has the name. */
static int install_in_two(const char *root, int64_t step, const char *tmp, const char *final, char **displaced,
			  struct io_error *err)
{
	char rnd[13], *old;

	io__random_name(rnd, 12);
	old = io__strf(err, "%s/step-%08" PRId64 ".old-%s", root, step, rnd);
	if (!old)
		return -1;
	if (io__rename_sync(final, old, err) != 0) {
		free(old);
		return -1;
	}
	if (rename(tmp, final) != 0) {
		io_errorf(err, errno, "%s: cannot rename to %s: %s", tmp, final, strerror(errno));
		if (rename(old, final) == 0)
			io_fsync_dir(root, NULL);
		free(old);
		return -1;
	}
	*displaced = old;
	return 0;
}

/* Gives tmp the name final. *displaced (caller frees) is where a checkpoint that had the name lies now. */
static int install(const char *root, int64_t step, const char *tmp, const char *final, char **displaced,
		   struct io_error *err)
{
	int kind = io__ckpt_kind(final);

	*displaced = NULL;
	/* something that is no checkpoint has the name: it may be the user's, so it is kept */
	if (kind == 0 && io__ckpt_set_aside(root, step, final, err) != 0)
		return -1;
	if (kind == 1) {
		if (renameat2(AT_FDCWD, tmp, AT_FDCWD, final, RENAME_EXCHANGE) == 0) {
			*displaced = strdup(tmp);
		} else if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) {
			return io_errorf(err, errno, "%s: cannot exchange with %s: %s", tmp, final,
					 strerror(errno));
		} else if (install_in_two(root, step, tmp, final, displaced, err) != 0) {
			return -1;
		}
	} else if (rename(tmp, final) != 0) {
		return io_errorf(err, errno, "%s: cannot rename to %s: %s", tmp, final, strerror(errno));
	}
	return io_fsync_dir(root, err);
}

int io_ckpt_publish(const char *root, int64_t step, const char *token, int nparts, const char *state_json,
		    struct io_error *err)
{
	char *tmp = NULL, *final = NULL, *displaced = NULL;
	struct io__model m = {0};
	json_error_t je;
	json_t *state;
	int i, rc = -1;

	if (io__ckpt_check_step(root, step, err) != 0 || io__ckpt_check_token(token, err) != 0)
		return -1;
	if (nparts < 1 || nparts > IO__CKPT_MAX_PARTS)
		return io_errorf(err, EINVAL, "%s: a checkpoint has 1 to %d parts, not %d", root,
				 IO__CKPT_MAX_PARTS, nparts);
	state = state_json && strlen(state_json) <= IO__CKPT_MAX_STATE
			? json_loads(state_json, JSON_REJECT_DUPLICATES, &je)
			: NULL;
	if (!state)
		return io_errorf(err, EINVAL,
				 "%s: the trainer's state of step %" PRId64 " is not JSON of at most %zu bytes",
				 root, step, IO__CKPT_MAX_STATE);
	json_decref(state);
	tmp = io__ckpt_tmp(root, step, token, err);
	final = io__ckpt_dir(root, step, err);
	if (!tmp || !final)
		goto done;
	for (i = 0; i < nparts; i++) {
		if (collect_part(tmp, i, step, &m, err) != 0)
			goto done;
	}
	m.step = step;
	if (io__model_check(&m, tmp, err) != 0 || write_documents(tmp, &m, state_json, err) != 0)
		goto done;
	drop_part_records(tmp, nparts);
	if (install(root, step, tmp, final, &displaced, err) != 0)
		goto done;
	rc = 0;
	if (displaced)
		io__ckpt_trash(root, step, displaced, NULL); /* what resists is swept by the next begin */
done:
	io__model_free(&m);
	free(displaced);
	free(tmp);
	free(final);
	return rc;
}

void io_ckpt_discard(const char *root, int64_t step, const char *token)
{
	char *tmp;

	if (io__ckpt_check_step(root, step, NULL) != 0 || io__ckpt_check_token(token, NULL) != 0)
		return;
	tmp = io__ckpt_tmp(root, step, token, NULL);
	if (tmp)
		io_remove_tree(tmp, NULL);
	free(tmp);
}
