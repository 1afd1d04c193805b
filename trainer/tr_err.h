/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAINER_TR_ERR_H
#define TRAINER_TR_ERR_H
/*
 * Errors of the trainer: one line of text and the exit code main returns for it.
 */
#include "io/io_err.h"
#include "libsp/sp_err.h"

enum tr_exit {
	TR_EXIT_OK = 0,
	TR_EXIT_FAIL = 1,        /* anything not below */
	TR_EXIT_USAGE = 2,       /* command line or configuration */
	TR_EXIT_DATA = 3,        /* dataset missing, damaged or foreign */
	TR_EXIT_LAUNCH = 4,      /* launcher, plugin and mesh do not fit */
	TR_EXIT_CHECKPOINT = 5,  /* cannot save or load */
	TR_EXIT_PEER = 6,        /* a rank was late or lost */
	TR_EXIT_NUMBERS = 7,     /* loss or gradient norm is not finite */
	TR_EXIT_PREEMPTED = 85,  /* stopped by a signal after saving; run the same command again */
};
struct tr_error {
	int exit_code;
	char text[1000];
};
/* Formats into *err, returns -1. The first error wins: an err that already holds text keeps it. */
int tr_errorf(struct tr_error *err, int exit_code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int tr_error_sp(struct tr_error *err, const struct sp_error *e);                /* takes over; exit code from e->code */
int tr_error_io(struct tr_error *err, int exit_code, const struct io_error *e); /* takes over */

#endif
