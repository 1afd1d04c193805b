/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAINER_SPECIAL_IDS_H
#define TRAINER_SPECIAL_IDS_H
#include <stdint.h>
#include "io/io_tokenizer.h"

/* Ids of the eos_token and pad_token that dir/tokenizer_config.json names, -1 where it names none or the vocabulary lacks
 * it. A missing file names nothing. */
int tr_special_ids(const char *dir, const struct io_tokenizer *t, int64_t *eos, int64_t *pad, struct io_error *err);

#endif
