/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IO_IO_DATASET_PRIV_H
#define IO_IO_DATASET_PRIV_H
/* Private: the opened dataset, for io_dataset.c, io_loader.c and the tests. */
#include <pthread.h>
#include "io/io_dataset.h"
#include "io/io_fdcache.h"
#include "io/io_manifest.h"
#include "io/io_shard.h"

struct io_dataset {
	char *dir;
	struct io_manifest m;
	struct io_hash128 manifest_hash;
	struct io_shard *shards; /* [m.nshards] */
	char **paths;            /* [m.nshards] */
	int64_t *first;          /* [m.nshards + 1] first sample of each shard */
	int64_t max_seg;         /* most segments of a sample */
	struct io_fdcache *fds;
	pthread_mutex_t lock; /* guards `seen` */
	uint8_t *seen;        /* one bit a sample: its hash has been checked */
};

/* Hash of a sample's token bytes, and on the way its ids [t0, t1) into out (may be NULL), all below
 * vocab_size. Without check_hash only [t0, t1) is read. */
int io__sample_scan(int fd, const char *path, const struct io_manifest *m, const struct io_manifest_shard *ms,
		    const struct io_shard *s, int64_t local, int64_t t0, int64_t t1, uint32_t *out, int check_hash,
		    struct io_error *err);
/* The tokenizer.json beside the shards against the manifest. */
int io__tokenizer_check(const char *dir, const struct io_manifest *m, struct io_error *err);

#endif
