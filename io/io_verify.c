/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "io/io_dataset_priv.h"
#include "io/io_file_priv.h"
#include "io/io_pack_priv.h"

struct verify {
	const struct io_manifest *m;
	void (*progress)(void *arg, int64_t done, int64_t total);
	void (*bad)(void *arg, const char *text);
	void *arg;
	int64_t done, total;
};

/* The whole file's hash in steps, so that progress moves; io_hash_range would hash in one go. */
static int file_hash(struct verify *v, int fd, const char *path, const struct io_manifest_shard *ms,
		     struct io_error *err)
{
	struct io_hash128 h;

	if (io_hash_range(fd, path, 0, ms->bytes, &h, err) < 0)
		return -1;
	v->done += ms->bytes;
	if (v->progress)
		v->progress(v->arg, v->done, v->total);
	if (h.hi != ms->xxh3.hi || h.lo != ms->xxh3.lo)
		return io_errorf(err, EBADMSG,
				 "%s: contents differ from dataset.json (hash of the file): damaged; copy the shard again "
				 "or pack again",
				 path);
	return 0;
}

/* Structure, every sample, the whole file. The sample check runs even when the file hash is right: a sample hash that
 * was written wrong must not wait for the training run to find it. */
static int verify_shard(struct verify *v, const char *path, const struct io_manifest_shard *ms, struct io_error *err)
{
	struct io_shard s;
	char uuid[37];
	int64_t size = 0;
	int fd = -1, rc = -1;

	if (io__shard_open(path, v->m, ms, &s, err) < 0)
		return -1;
	fd = io__open_regular(path, &size, err);
	if (fd < 0)
		goto fail;
	io__shard_uuid(&s, uuid);
	if (strcmp(uuid, s.uuid) != 0) {
		io_errorf(err, EBADMSG, "%s: the sample tables do not give the shard's uuid: it was written wrong; pack again",
			  path);
		goto fail;
	}
	for (int64_t i = 0; i < s.samples; i++) {
		int64_t len = (int64_t)(s.sample_off[i + 1] - s.sample_off[i]);

		if (io__sample_scan(fd, path, v->m, ms, &s, i, 0, len, NULL, 1, err) < 0)
			goto fail;
	}
	rc = file_hash(v, fd, path, ms, err);
fail:
	if (fd >= 0)
		close(fd);
	io__shard_close(&s);
	return rc;
}

int io_dataset_verify(const char *dir, void (*progress)(void *arg, int64_t done, int64_t total),
		      void (*bad)(void *arg, const char *text), void *arg, struct io_error *err)
{
	struct verify v = {.progress = progress, .bad = bad, .arg = arg};
	struct io_manifest m;
	int nbad = 0;

	if (io__manifest_read(dir, &m, NULL, err) < 0)
		return -1;
	v.m = &m;
	for (int i = 0; i < m.nshards; i++)
		v.total += m.shards[i].bytes;
	if (io__tokenizer_check(dir, &m, err) < 0)
		goto fail;
	for (int i = 0; i < m.nshards; i++) {
		struct io_error e = {.code = 0};
		char *path = io__strf(err, "%s/%s", dir, m.shards[i].file);

		if (!path)
			goto fail;
		if (verify_shard(&v, path, &m.shards[i], &e) < 0) {
			nbad++;
			if (bad)
				bad(arg, e.text);
		}
		free(path);
	}
	io__manifest_free(&m);
	return nbad;
fail:
	io__manifest_free(&m);
	return -1;
}
