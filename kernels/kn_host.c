/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/kn_host.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Blocks this large are aligned for transparent huge pages: first touch of 4 KiB pages is what a big
 * allocation costs otherwise. */
#define HUGE_ALIGN ((size_t)2 << 20)
#define MAX_THREADS 4096

int kn_host_open(const struct kn_open_args *args, struct kn_ctx **out)
{
	struct kn_ctx *c;

	if (!args || !out)
		return -EINVAL;
	*out = NULL;
	if (args->threads < 1 || args->threads > MAX_THREADS)
		return -EINVAL;
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->threads = args->threads;
	*out = c;
	return 0;
}

void kn_host_close(struct kn_ctx *c)
{
	if (!c)
		return;
	free(c->scratch);
	free(c);
}

const char *kn_host_strerror(const struct kn_ctx *c)
{
	return c && c->err.text[0] ? c->err.text : "no error";
}

static void *aligned(size_t bytes)
{
	size_t align = bytes >= 2 * HUGE_ALIGN ? HUGE_ALIGN : 64;
	void *p = NULL;

	if (bytes > SIZE_MAX - align)
		return NULL;
	if (posix_memalign(&p, align, bytes ? (bytes + align - 1) & ~(align - 1) : align))
		return NULL;
	if (align == HUGE_ALIGN)
		(void)madvise(p, bytes, MADV_HUGEPAGE);
	return p;
}

int kn_host_alloc(struct kn_ctx *c, size_t bytes, void **out)
{
	*out = aligned(bytes);
	if (!*out)
		return kn_fail(&c->err, -ENOMEM, "alloc: no memory for %zu bytes; use a smaller model or shorter sequences",
			       bytes);
	return 0;
}

void kn_host_free(struct kn_ctx *c, void *p)
{
	(void)c;
	free(p);
}

int kn_host_sync(struct kn_ctx *c)
{
	(void)c;
	return 0;
}

void *kn_host_scratch(struct kn_ctx *c, size_t bytes)
{
	if (bytes <= c->scratch_bytes && c->scratch)
		return c->scratch;
	free(c->scratch);
	c->scratch_bytes = 0;
	c->scratch = aligned(bytes);
	if (!c->scratch)
		kn_fail(&c->err, -ENOMEM, "scratch: no memory for %zu bytes; use shorter sequences or fewer threads",
			bytes);
	else
		c->scratch_bytes = bytes;
	return c->scratch;
}
