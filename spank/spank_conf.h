/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SPANK_CONF_H
#define SPANK_CONF_H
/*
 * What an administrator sets behind the plugin's name in plugstack.conf:
 *
 *     required spank_sp.so max_sp=8 init_timeout=120 require_pmix=yes supply_tasks=yes
 */
#include <stddef.h>

struct plug_conf {
	int max_sp;	  /* largest --sp-size a user may ask for; default 65536 */
	int init_timeout; /* seconds all ranks have to arrive, exported as SP_INIT_TIMEOUT; default 120 */
	int require_pmix; /* refuse steps of several tasks without --mpi=pmix; default yes */
	int supply_tasks; /* give the task count when the user gave none; default yes */
};

/* Writes defaults, then the given words over them. Returns 0, or -1 with one line in err. */
int plug_conf_parse(int ac, char *const *av, struct plug_conf *conf, char *err, size_t errlen);

#endif
