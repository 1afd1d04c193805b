/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include "io/io_pack_priv.h"

/* The open sample: its tokens are p->tok, its segments p->pieces. */
int io__wrap_flush(struct io_packer *p, struct io_error *err)
{
	int64_t n = p->pieces.n;
	const struct io_piece **order;
	int rc;

	if (n == 0)
		return 0;
	order = malloc((size_t)n * sizeof(*order));
	if (!order)
		return io_errorf(err, ENOMEM, "out of memory for a sample of %lld segments", (long long)n);
	for (int64_t i = 0; i < n; i++)
		order[i] = (const struct io_piece *)p->pieces.p + i;
	rc = io__pack_sample(p, order, n, err);
	free(order);
	p->pieces.n = p->tok.n = 0;
	return rc;
}

int io__wrap_add(struct io_packer *p, const uint32_t *ids, int64_t n, uint64_t doc, struct io_error *err)
{
	int64_t pos = 0;

	while (pos < n) {
		int64_t used = p->tok.n / p->m.width, room = p->o.seq_length - used, take = n - pos;
		struct io_piece *pc;

		/* One token in the last place would be a segment without a target, repeated in the next sample. */
		if (room == 0 || (room == 1 && take > 1)) {
			if (io__wrap_flush(p, err) < 0)
				return -1;
			continue;
		}
		if (take > room)
			take = room;
		if (io__vec_room(&p->pieces, 1, sizeof(*pc), err) < 0 || io__pack_tokens(p, ids + pos, take, err) < 0)
			return -1;
		pc = (struct io_piece *)p->pieces.p + p->pieces.n++;
		*pc = (struct io_piece){.tok = used, .doc = doc, .start = (uint64_t)pos, .len = (uint32_t)take};
		pos += take;
		if (pos < n)
			pos--; /* the cut's last token opens the next segment: its target counts there, once */
	}
	return 0;
}
