/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IO_IO_SHA256_H
#define IO_IO_SHA256_H
/* Private: SHA-256 of a buffer as 64 hexadecimal digits, for tokenizer.json files. FIPS 180-4. */
#include <stddef.h>

void io__sha256_hex(const void *data, size_t n, char out[65]);

#endif
