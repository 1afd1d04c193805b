/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAINER_RUNLOCK_H
#define TRAINER_RUNLOCK_H
/*
 * One job a run folder. output_dir/.lock holds host, process and Slurm job of the owner, but the lock itself is an fcntl lock on
 * the open file: it ends with the process, however that ends, so that a killed run can be started again at once. On a
 * file system without locks (NFS mounted with nolock, some parallel ones) the lock is left out and *note says so.
 */
#include <stddef.h>
#include "trainer/tr_err.h"

/* Waits up to wait_ms for an owner that is just being killed. Returns the descriptor to close at the end of the run, or -1;
 * *note (may be NULL) becomes a line for the log or "". */
int tr_runlock_take(const char *dir, int wait_ms, char *note, size_t notelen, struct tr_error *err);
void tr_runlock_release(int fd);

#endif
