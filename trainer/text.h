/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAINER_TEXT_H
#define TRAINER_TEXT_H
/*
 * Numbers as text: exactly for files, shortly for people. Each function fills and returns `buf`.
 */
#include <stddef.h>
#include <stdint.h>

#define TR_TEXT 32
/* The shortest decimal that reads back as the same double, always with a point: YAML and JSON take it for a real. */
const char *tr_text_real(double d, char buf[TR_TEXT]);
const char *tr_text_bytes(int64_t n, char buf[TR_TEXT]);    /* "512 B", "7.3 MiB" */
const char *tr_text_count(double n, char buf[TR_TEXT]);     /* "950", "12.3k", "1.90M" */
const char *tr_text_duration(double s, char buf[TR_TEXT]);  /* "0:07", "1:02:03", "3d 04:05" */

#endif
