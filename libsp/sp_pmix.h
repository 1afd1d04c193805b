/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBSP_SP_PMIX_H
#define LIBSP_SP_PMIX_H
/* Private: the PMIx client. sp_pmix.c is the only file that knows pmix.h. */
#include <stddef.h>
#include "libsp/sp_err.h"

struct sp_pmix;

/* Connects to the launcher's PMIx server; refuses a singleton. */
int sp_pmix_init(struct sp_pmix **out, struct sp_error *err);
/* NULL is fine. Frees p. A client that leaves without it makes the launcher end the whole job. */
void sp_pmix_finalize(struct sp_pmix *p);

int sp_pmix_rank(const struct sp_pmix *p);
int sp_pmix_size(const struct sp_pmix *p);
int sp_pmix_local_size(const struct sp_pmix *p); /* processes of the job on this node; 0: not told */
/* Node name of a rank as the launcher knows it; 0, or -1 when it does not tell. */
int sp_pmix_node_of(const struct sp_pmix *p, int rank, char *name, size_t len);
/* The job's nodes in the launcher's order, comma-separated; caller frees; NULL when it does not tell. */
char *sp_pmix_nodes(const struct sp_pmix *p);

/* Every rank gives `bytes` under `key` (new in this job) and receives everyone's in all[size][bytes]: a barrier as well. Sizes
 * that differ are SP_ELAUNCH. When not all come within timeout_s: SP_ETIMEOUT, and missing[rank] is 1 for those who did not. */
int sp_pmix_exchange(struct sp_pmix *p, const char *key, const void *mine, size_t bytes, void *all, int timeout_s,
		     unsigned char *missing, struct sp_error *err);

/* Ends all processes of the job with this exit code. Does not return. */
void sp_pmix_abort(struct sp_pmix *p, int exit_code, const char *text) __attribute__((noreturn));

#endif
