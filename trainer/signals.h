/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAINER_SIGNALS_H
#define TRAINER_SIGNALS_H
/*
 * Signals that ask for a checkpoint and an orderly end: SIGUSR2 (sbatch --signal=USR2@60), SIGTERM (scancel, preemption) and
 * SIGINT (Ctrl-C; a second one ends the process at once). The handler only sets a flag; the loop reads it between steps, where
 * all ranks agree. The flag is the one process-wide variable of the trainer: a handler has nowhere else to write.
 */
void tr_signals_install(void);
/* Number of the signal that arrived, or 0. */
int tr_signals_pending(void);
const char *tr_signals_name(int sig);

#endif
