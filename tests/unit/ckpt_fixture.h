/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_CKPT_FIXTURE_H
#define TESTS_UNIT_CKPT_FIXTURE_H
/* A small state whose every byte is a function of (step, tensor, position), saved in any number of uneven parts.
 */
#include <errno.h>
#include <inttypes.h>

#include "io/io_ckpt.h"
#include "tests/unit/io_test.h"

#ifndef FIX_ROWS
#define FIX_ROWS 1001
#endif

static const struct {
	const char *name;
	enum io_dtype dtype;
	int ndim;
	int64_t dims[3], count;
} fixture[] = {
	{"model.embed.weight", IO_F32, 2, {7, 5}, 35},
	{"model.norm", IO_BF16, 1, {13}, 13},
	{"optim.m/model.norm", IO_F32, 1, {101}, 101},
	{"scalar", IO_I64, 0, {0}, 1},
	{"empty", IO_F32, 2, {0, 3}, 0},
	{"odd \"name\"\n\xc3\xa4", IO_U8, 1, {2500}, 2500},
	{"big", IO_U8, 3, {11, 100, FIX_ROWS}, 1100 * FIX_ROWS},
};
#define NFIX 7

/* Tells two states of one step apart. */
static int64_t fix_salt;

static inline unsigned char fix_byte(int64_t step, int t, int64_t i)
{
	uint64_t s = (uint64_t)(step * 131 + fix_salt * 71 + t * 29 + i);

	return (unsigned char)(s ^ s >> 7 ^ s >> 13);
}

static inline char *fix_state(int64_t step)
{
	char *s = NULL;

	assert_true(asprintf(&s, "{\"step\": %" PRId64 ", \"salt\": %" PRId64 "}\n", step, fix_salt) > 0);
	return s;
}

/* cut[t][p]: part p of P holds elements [cut[t][p], cut[t][p + 1]) of tensor t; uneven, some empty. */
struct fix_cuts {
	int parts;
	int64_t cut[NFIX][65];
};

static inline int fix_cmp(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

static inline void fix_cut(struct fix_cuts *c, int parts, uint64_t seed)
{
	c->parts = parts;
	for (int t = 0; t < NFIX; t++) {
		c->cut[t][0] = 0;
		for (int p = 1; p < parts; p++)
			c->cut[t][p] = (int64_t)(next_random(&seed) % (uint64_t)(fixture[t].count + 1));
		c->cut[t][parts] = fixture[t].count;
		qsort(c->cut[t], (size_t)parts + 1, sizeof(int64_t), fix_cmp);
	}
}

static inline struct io_ckpt_slice fix_slice(int t, int64_t begin, int64_t end, const void *data)
{
	struct io_ckpt_slice s = {fixture[t].name, fixture[t].dtype, fixture[t].ndim, {0}, begin, end, data};

	memcpy(s.dims, fixture[t].dims, sizeof(fixture[t].dims));
	return s;
}

static inline int fix_write_part(const char *root, int64_t step, const char *token, const struct fix_cuts *c,
				 int p, struct io_error *err)
{
	struct io_ckpt_slice s[NFIX];
	void *data[NFIX];
	int rc;

	for (int t = 0; t < NFIX; t++) {
		int64_t size = (int64_t)io_dtype_size(fixture[t].dtype), b = c->cut[t][p], e = c->cut[t][p + 1];
		unsigned char *d = malloc((size_t)((e - b) * size) + 1);

		for (int64_t i = 0; i < (e - b) * size; i++)
			d[i] = fix_byte(step, t, b * size + i);
		data[t] = d;
		s[t] = fix_slice(t, b, e, d);
	}
	rc = io_ckpt_write_part(root, step, token, p, s, NFIX, err);
	for (int t = 0; t < NFIX; t++)
		free(data[t]);
	return rc;
}

/* A whole save, left as it is when a phase fails; -1 when any phase fails. */
static inline int fix_save(const char *root, int64_t step, int parts, uint64_t seed, struct io_error *err)
{
	struct fix_cuts c;
	char *state = fix_state(step);
	int rc;

	fix_cut(&c, parts, seed);
	rc = io_ckpt_begin(root, step, "abc0", 4 << 20, err);
	for (int p = 0; p < parts && rc == 0; p++)
		rc = fix_write_part(root, step, "abc0", &c, p, err);
	if (rc == 0)
		rc = io_ckpt_publish(root, step, "abc0", parts, state, err);
	free(state);
	return rc;
}

/* Everything of the step is there and right, read with other cuts. 0 or -1 with the text. */
static inline int fix_check(const char *root, int64_t step, int parts, uint64_t seed, struct io_error *err)
{
	struct io_ckpt *c = NULL;
	struct fix_cuts k;
	char *state = fix_state(step);
	int rc = io_ckpt_open(root, step, &c, err);

	fix_cut(&k, parts, seed);
	for (int i = 0; rc == 0 && i < io_ckpt_nfiles(c); i++)
		rc = io_ckpt_verify_file(c, i, err);
	if (rc == 0 && (strcmp(io_ckpt_state(c), state) != 0 || io_ckpt_ntensors(c) != NFIX))
		rc = io_errorf(err, EBADMSG, "wrong state or number of tensors");
	for (int t = 0; rc == 0 && t < NFIX; t++) {
		const struct io_tensor *x = io_ckpt_find(c, fixture[t].name);

		if (!x || x->dtype != fixture[t].dtype || x->ndim != fixture[t].ndim ||
		    x->count != fixture[t].count || memcmp(x->dims, fixture[t].dims, (size_t)x->ndim * 8) != 0)
			rc = io_errorf(err, EBADMSG, "wrong shape of %s", fixture[t].name);
		for (int p = 0; rc == 0 && p < parts; p++) {
			int64_t size = (int64_t)io_dtype_size(fixture[t].dtype), b = k.cut[t][p],
				e = k.cut[t][p + 1];
			unsigned char *d = malloc((size_t)((e - b) * size) + 1);

			rc = io_ckpt_read(c, fixture[t].name, b, e, d, err);
			for (int64_t i = 0; rc == 0 && i < (e - b) * size; i++) {
				if (d[i] != fix_byte(step, t, b * size + i))
					rc = io_errorf(err, EBADMSG, "wrong byte %" PRId64 " of %s", b * size + i,
						       fixture[t].name);
			}
			free(d);
		}
	}
	io_ckpt_close(c);
	free(state);
	return rc;
}

#endif
