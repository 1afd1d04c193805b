/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SPANK_HOOKS_H
#define SPANK_HOOKS_H
/*
 * The plugin's work in each process it is loaded into (spank_dispatch.c chooses). All return 0, or -1 to fail the
 * command; never another value: before Slurm 25.05 a positive one is logged and ignored.
 */
#include <slurm/spank.h>

/*
 * What srun tells the nodes about a step although the options are in force; taken away before tasks start.
 * (Variables that begin with SLURM pass every --export.) off      no sequence parallelism in this step refused  no
 * task may start: every one of them ends with exit code 1 before its program is run
 */
#define PLUG_STEP_VAR	  "SLURM_SP_STEP"
#define PLUG_STEP_OFF	  "off"
#define PLUG_STEP_REFUSED "refused"

/* srun */
int plug_local_init(spank_t sp, int ac, char **av);
int plug_local_post_opt(spank_t sp);
int plug_local_user_init(spank_t sp);

/* sbatch and salloc */
int plug_alloc_init(spank_t sp, int ac, char **av);
int plug_alloc_post_opt(spank_t sp);

/* slurmstepd. Only task_init ever fails: a failure before drains the node under sbatch, or leaves srun with exit
 * code 0. */
int plug_remote_init(spank_t sp, int ac, char **av);
int plug_remote_post_opt(spank_t sp);
int plug_remote_user_init(spank_t sp);
int plug_remote_task_init(spank_t sp);
int plug_remote_exit(spank_t sp);

#endif
